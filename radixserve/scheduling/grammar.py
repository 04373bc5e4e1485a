"""What an answer's text has to look like, and where in it an answer stands."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

GrammarKind = Literal["json_schema", "regex", "choice", "grammar", "lark"]


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The form of a whole answer."""

    kind: GrammarKind
    text: str
    """A JSON schema; a regular expression that matches from the first character to the last; a JSON
    list of strings; a context-free grammar in GBNF or Lark; or surely one in Lark, in llguidance's
    dialect."""
    frame: str = ""
    """A grammar of that dialect for the whole answer, in which ``@form`` stands for what the above
    describes; empty where that is the whole answer."""


class Matcher(Protocol):
    """Where one answer stands in its grammar: ``radixserve.engine.grammars.Progress``."""

    @property
    def ready(self) -> bool:
        """Whether the grammar is compiled, or can never be; the rest is asked only then."""

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is whole."""

    @property
    def complete(self) -> bool:
        """Whether it is, and nothing may follow."""

    def allowed(self) -> bytes:
        """One bit a token, the lowest first: whether it may come next. Stop tokens aside: they may
        where the answer may end.

        Raises:
            RadixServeError: the grammar is too complex to go on with, or could not be compiled.
        """

    def accept(self, token: int) -> bool:
        """Move on by ``token``; False if it may not come next."""
