"""The grammars of an engine: compiled on a thread, kept while in use, and moved on."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from radixserve.errors import InvalidRequestError, RadixServeError
from radixserve.scheduling.grammar import Grammar
from radixserve.text.grammar import GrammarCompiler, GrammarError, Matcher, TokenTable

KEPT = 64
"""Compiled grammars."""
KEPT_TEXT = 2**22
"""Characters of theirs."""

INVALID = "invalid_json_schema"
NO_GRAMMARS = (
    "The tokens of this model do not stand for pieces of text: its answers cannot have a form."
)


class Grammars:
    """Compiles each grammar once, off the thread that asks for it. One thread may ask.

    Args:
        table: the tokens of the model; None where there are no grammars over them.
    """

    def __init__(self, table: TokenTable | None):
        self._table = table
        self._compiler: GrammarCompiler | None = None
        self._pool = ThreadPoolExecutor(1, "grammars")
        self._kept: OrderedDict[Grammar, Future[Matcher]] = OrderedDict()
        self._size = 0

    def prepare(self) -> None:
        """Make what compiling needs, which holds up all threads of Python, now and not later."""
        if self._compiler is None and self._table is not None:
            self._compiler = GrammarCompiler(self._table)

    def matcher(self, grammar: Grammar) -> Standing:
        """Where an answer stands that has not begun. O(1), beside the thread's work.

        Raises:
            InvalidRequestError: this model cannot have grammars.
        """
        if self._table is None:
            raise InvalidRequestError(NO_GRAMMARS, code="unsupported_parameter")
        compiled = self._kept.get(grammar)
        if compiled is None:
            compiled = self._pool.submit(self._compile, grammar)
            self._kept[grammar] = compiled
            self._size += _size(grammar)
            while len(self._kept) > KEPT or (self._size > KEPT_TEXT and len(self._kept) > 1):
                dropped, _ = self._kept.popitem(last=False)
                self._size -= _size(dropped)
        self._kept.move_to_end(grammar)
        return Standing(compiled)

    def _compile(self, grammar: Grammar) -> Matcher:
        self.prepare()
        assert self._compiler is not None, "there is a table"
        return self._compiler.compile(grammar.kind, grammar.text, grammar.frame)

    def await_one(self, seconds: float) -> None:
        """Wait until one of those that are being compiled is, but no longer than that."""
        compiling = [each for each in self._kept.values() if not each.done()]
        if compiling:
            wait(compiling, seconds, FIRST_COMPLETED)

    def check(self, grammar: Grammar) -> None:
        """Wait until ``grammar`` is compiled.

        Raises:
            InvalidRequestError: it cannot be, or this model cannot have grammars.
        """
        self.matcher(grammar).check()


def _size(grammar: Grammar) -> int:
    return len(grammar.text) + len(grammar.frame)


class Standing:
    """Where one answer stands in its grammar, a ``radixserve.scheduling.grammar.Matcher``."""

    __slots__ = ("_compiled", "_matcher")

    def __init__(self, compiled: Future[Matcher]):
        self._compiled = compiled
        self._matcher: Matcher | None = None

    @property
    def ready(self) -> bool:
        return self._compiled.done()

    @property
    def may_end(self) -> bool:
        return bool(self.check().is_accepting())

    @property
    def complete(self) -> bool:
        return bool(self.check().is_stopped())

    def allowed(self) -> bytes:
        matcher = self.check()
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise RadixServeError("its grammar is too complex to go on with")
        return bytes(mask)

    def accept(self, token: int) -> bool:
        return bool(self.check().consume_token(token))

    def check(self) -> Matcher:
        """Its own matcher, waited for.

        Raises:
            InvalidRequestError: the grammar could not be compiled.
        """
        if self._matcher is None:
            try:
                compiled = self._compiled.result()
            except GrammarError as error:
                raise InvalidRequestError(
                    f"The grammar is not valid: {error}.", param="grammar", code=INVALID
                ) from error
            self._matcher = compiled.deep_copy()
        return self._matcher
