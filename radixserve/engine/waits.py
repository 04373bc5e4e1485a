"""How long requests have waited in the queue."""

from __future__ import annotations

import time
from collections.abc import Callable

from radixserve.scheduling.plan import StepPlan


class Waits:
    """From the moment at which a request was asked for to the first step with a part of it.

    Times are in seconds of the machine's monotonic clock. Of a request that nobody said anything
    of nothing is known.
    """

    __slots__ = ("_asked", "_clock", "_untold")

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._asked: dict[str, float] = {}
        """When those were asked for that wait still."""
        self._untold: dict[str, float] = {}
        """How long those had waited that have had no news yet."""

    def begin(self, request_id: str, asked: float) -> None:
        """A request waits that was asked for at ``asked``. O(1)."""
        self._asked[request_id] = asked

    def end(self, plan: StepPlan) -> None:
        """Those that are in ``plan`` wait no more. O(rows that are not known to decode)."""
        if not self._asked:
            return
        now = self._clock()
        for row in plan.rows[plan.decoding :]:
            asked = self._asked.pop(row.request_id, None)
            if asked is not None:
                self._untold[row.request_id] = max(0.0, now - asked)

    def take(self, request_id: str) -> float | None:
        """How long a request had waited that has news; None if that was told before. O(1)."""
        if not self._untold:
            return None
        return self._untold.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A request has ended. O(1)."""
        self._asked.pop(request_id, None)
        self._untold.pop(request_id, None)

    def __len__(self) -> int:
        """Requests that something is known of. O(1)."""
        return len(self._asked) + len(self._untold)
