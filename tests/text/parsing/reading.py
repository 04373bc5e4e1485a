"""What a parser tells of a text, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from radixserve.text.parsing.events import Event
from radixserve.text.parsing.parser import Formats, schemas_of
from tests.text.parsing.samples import TOOLS

SCHEMAS = schemas_of(TOOLS)


@dataclass
class Read:
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            assert event.text
            if event.kind == "call":
                self.calls.append([event.text, ""])
            elif event.kind == "arguments":
                self.calls[-1][1] += event.text
            else:
                setattr(self, event.kind, getattr(self, event.kind) + event.text)

    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read(
    formats: Formats, pieces: Iterable[str], *, opened: bool = False, complete: bool = True
) -> Read:
    parser = formats.parser(SCHEMAS, opened=opened)
    found = Read()
    for piece in pieces:
        found.take(parser.push(piece))
    found.take(parser.finish(complete=complete))
    return found
