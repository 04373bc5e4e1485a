"""The loop of an engine: commands between steps, and news after each."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from radixserve.cache.purge import Purge
from radixserve.cache.view import view
from radixserve.engine.core import EngineCore
from radixserve.engine.look import look
from radixserve.engine.messages import (
    Abort,
    Add,
    Answered,
    Command,
    Dropped,
    EndSession,
    Fault,
    Forget,
    GenerationDelta,
    GenerationRequest,
    Look,
    Lost,
    News,
    Ping,
    RankLost,
    Refusal,
    Reset,
    SessionEnded,
    SetPublic,
    SetTenants,
    StepNews,
    Stop,
    Survey,
    Surveyed,
)
from radixserve.engine.pace import Pace
from radixserve.errors import DeadlineError, EngineDeadError, LostError, RadixServeError

log = logging.getLogger(__name__)

WHOLE_EVERY = 32
"""Steps after which all counts are told again, also those that take long to count."""
WHOLE_AFTER = 0.5
"""Seconds after which they are, however slow steps are."""


class EngineLoop:
    """Runs ``core`` in the thread that calls ``run``, which alone touches it.

    Args:
        core: what computes.
        get: the next command, waited for if its argument is true; raises ``queue.Empty``.
        send: takes news away, without waiting.
        clock: seconds of the machine's monotonic clock.
    """

    def __init__(
        self,
        core: EngineCore,
        get: Callable[[bool], Command],
        send: Callable[[News], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._core, self._get, self._send, self._clock = core, get, send, clock
        self._pace = Pace(core.config.max_num_batched_tokens)
        self._queue_timeout = core.config.queue_timeout
        self._untold = 0
        """Steps since all counts were told."""
        self._told = clock()
        """When that was."""
        self._queued: deque[tuple[float, list[str]]] = deque()
        """The sequences of a prompt, in the order in which these came, with the moment until which
        the first of them may wait."""

    def run(self) -> None:
        """Until it is told to stop.

        Raises:
            EngineDeadError: what computes steps has ended, or does nothing but fail.
        """
        going = True
        while going:
            try:
                going = self._turn()
            except LostError as error:
                self._tell_all(error)

    def _turn(self) -> bool:
        """Take commands, then compute a step. Returns whether to go on."""
        if not self._obey():
            return False
        self._tell(self._step())
        self._dismiss()
        return True

    def _step(self) -> list[GenerationDelta]:
        totals = self._core.scheduler.totals
        begun, computed = self._clock(), totals.computed_tokens
        self._core.cache.time = begun
        deltas = self._core.step()
        self._pace.note(totals.computed_tokens - computed, self._clock() - begun)
        return deltas

    def _tell(self, deltas: list[GenerationDelta]) -> None:
        """What a step brought, with the counts; those of tenants and of what waits only now and
        then, since there may be a thousand of both."""
        self._untold += 1
        now = self._clock()
        due = self._untold >= WHOLE_EVERY or now - self._told >= WHOLE_AFTER
        whole = due or self._core.idle
        if whole:
            self._untold, self._told = 0, now
        self._send(StepNews(deltas, self._core.stats(whole=whole)))

    def _obey(self) -> bool:
        """Take the commands that have come, waiting for one while there is nothing to compute.

        Returns whether to go on.
        """
        core = self._core
        while True:
            try:
                command = self._get(core.idle)
            except queue.Empty:
                return True
            core.cache.time = self._clock()  # it stood still while there was nothing to do
            match command:
                case Add():
                    self._add(command)
                case Abort():
                    if (ended := core.abort(command.id)) is not None:
                        self._tell([ended])
                case Reset() | Forget() | EndSession() | Survey() | Look():
                    self._answer(command)
                case SetTenants():
                    core.set_tenants(command.terms)
                case SetPublic():
                    core.set_public(command.prefixes)
                case Ping():
                    pass
                case RankLost():
                    raise EngineDeadError(command.reason)
                case Stop():
                    return False
            if core.idle:
                self._tell([])

    def _add(self, command: Add) -> None:
        identities = [sequence.id for sequence in command.sequences]
        for sequence in command.sequences:
            try:
                self._core.add(sequence)
                if sequence.sibling is None:
                    self._core.waits.begin(sequence.id, command.asked)
                self._check_deadline(sequence)
            except LostError:
                raise
            except RadixServeError as error:
                self._refuse(identities, sequence.id, error)
                return
            except Exception as error:
                log.exception("a request could not be queued")
                self._refuse(identities, sequence.id, LostError(str(error) or repr(error)))
                return
        if self._queue_timeout is not None:
            self._queued.append((command.asked + self._queue_timeout, identities))

    def _answer(self, command: Answered) -> None:
        """Do what somebody waits to hear of, and tell."""
        core = self._core
        match command:
            case Reset():
                self._forget(partial(core.reset_prefix_cache, command.tenants))
            case Forget():
                self._forget(partial(core.purge, command.namespace))
            case EndSession():
                self._end_session(command)
            case Survey():
                self._send(Surveyed(view(core.cache, command.limit, command.tenant)))
            case Look():
                self._send(look(core, command))

    def _forget(self, forget: Callable[[], Purge]) -> None:
        try:
            purge = forget()
        except LostError as error:
            self._tell_all(error)
            purge = Purge(0, 0)  # nothing is left to forget
        self._send(Dropped(purge))

    def _end_session(self, command: EndSession) -> None:
        try:
            pages = self._core.end_session(command.tenant, command.namespace, command.session)
        except LostError as error:
            self._tell_all(error)
            pages = 0  # it is over with all that was cached
        self._send(SessionEnded(pages))

    def _tell_all(self, error: LostError) -> None:
        self._send(Lost(Fault.of(error)))
        self._send(StepNews([], self._core.stats()))

    def _check_deadline(self, sequence: GenerationRequest) -> None:
        """Refuse at once what could not begin in time even if all goes well.

        Raises:
            DeadlineError: it could not.
        """
        if sequence.deadline is None or sequence.sibling is not None:
            return
        now, rate = self._clock(), self._pace.rate
        wait = self._core.tokens_before(sequence.id) / rate if rate is not None else 0.0
        if now + wait > sequence.deadline:
            raise DeadlineError(
                "The server is too busy to begin the answer before the request's timeout. Send it "
                "again later, or with a longer timeout."
            )

    def _dismiss(self) -> None:
        """Refuse those that have waited for too long, and forget those that do not wait any more.
        O(1) a sequence."""
        while self._queued:
            until, identities = self._queued[0]
            waits = self._core.unstarted(identities[0])
            if waits and self._clock() < until:
                return
            self._queued.popleft()
            if waits:
                error = DeadlineError(
                    f"The server was too busy to begin within {self._queue_timeout:g} seconds."
                )
                self._refuse(identities, identities[0], error)

    def _refuse(self, identities: list[str], refused: str, error: RadixServeError) -> None:
        """``refused`` is not computed, and neither are the others, which came with it."""
        for identity in identities:
            self._core.abort(identity)
        self._send(Refusal(refused, Fault.of(error)))
