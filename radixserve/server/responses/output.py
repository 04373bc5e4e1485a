"""The items of an answer, and the events that tell how each is written."""

from __future__ import annotations

from typing import Any

from radixserve.engine.frontend import TokenLogprob
from radixserve.server.chat import token_logprob
from radixserve.server.parsed import Piece
from radixserve.server.responses.items import item_id
from radixserve.server.responses.wire import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from radixserve.server.sse import event
from radixserve.server.wire import TokenLogprobObject

WRITES: dict[type[OutputItem], str] = {
    MessageItem: "response.output_text",
    ReasoningItem: "response.reasoning_text",
    FunctionCallItem: "response.function_call_arguments",
}
"""What the events are called that tell of the text of an item."""


class Numbered:
    """Makes the events of one stream, without gaps in their numbers."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, name: str, **fields: Any) -> bytes:
        body = {"type": name, "sequence_number": self._next, **fields}
        self._next += 1
        return event(body, name)


class Output:
    """The items of one response, of which the last one is being written.

    Args:
        items: Of the response; it grows in place.
        before: How many items the input has, whose ids come first.
    """

    def __init__(self, items: list[OutputItem], tell: Numbered, response: str, before: int):
        self._items = items
        self._tell = tell
        self._response = response
        self._before = before
        self._item: OutputItem | None = None
        """That is being written."""
        self._pieces: list[str] = []
        """Of its text."""
        self._held: list[TokenLogprobObject] = []
        """Of tokens whose text is still to come."""
        self._shown: list[TokenLogprobObject] = []
        """Of the message that is being written."""

    def hold(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Those of tokens that may become text of a message."""
        self._held += map(token_logprob, logprobs)

    def add(self, piece: Piece) -> bytes:
        """Write what ``piece`` says; returns the events."""
        begun = b""
        match piece.kind:
            case "call":
                return self._open(FunctionCallItem(piece.id, piece.text, ""))
            case "arguments" if not piece.text:
                return b""
            case "content" if not isinstance(self._item, MessageItem):
                begun = self._open(MessageItem("assistant", []))
            case "reasoning" if not isinstance(self._item, ReasoningItem):
                begun = self._open(ReasoningItem(content=[]))
        return begun + self._write(piece.text)

    def close(self, status: str) -> bytes:
        """The item that is being written ends; returns the events."""
        item = self._item
        if item is None:
            return b""
        told = self._write("") if self._held and isinstance(item, MessageItem) else b""
        self.fill()
        what = "arguments" if isinstance(item, FunctionCallItem) else "text"
        text = self._pieces[0]
        told += self._of_item(f"{WRITES[type(item)]}.done", **{what: text}, **self._logprobs(item))
        if (part := _part(item)) is not None:
            if isinstance(part, OutputText):
                part.logprobs = list(self._shown)
            told += self._of_item("response.content_part.done", part=part)
        item.status = status
        told += self._tell(
            "response.output_item.done", output_index=len(self._items) - 1, item=item
        )
        self._item, self._pieces, self._held, self._shown = None, [], [], []
        return told

    def fill(self) -> None:
        """The item that is being written gets the text that there is of it."""
        self._pieces = ["".join(self._pieces)]
        if isinstance(self._item, FunctionCallItem):
            self._item.arguments = self._pieces[0]
        elif self._item is not None and (part := _part(self._item)) is not None:
            part.text = self._pieces[0]

    def _open(self, item: OutputItem) -> bytes:
        held, self._held = self._held, []
        told = self.close("completed")
        if isinstance(item, MessageItem):
            self._held = held
        item.id = item_id(type(item), self._response, self._before + len(self._items))
        item.status = "in_progress"
        self._items.append(item)
        self._item = item
        told += self._tell(
            "response.output_item.added", output_index=len(self._items) - 1, item=item
        )
        if isinstance(item, FunctionCallItem):
            return told
        part: OutputText | ReasoningText
        if isinstance(item, MessageItem):
            part = OutputText("")
            item.content = [part]
        else:
            part = ReasoningText("")
            item.content = [part]
        return told + self._of_item("response.content_part.added", part=part)

    def _write(self, text: str) -> bytes:
        item = self._item
        assert item is not None
        self._pieces.append(text)
        news, self._held = self._held, []
        shown = {"logprobs": news} if isinstance(item, MessageItem) else {}
        self._shown += news
        return self._of_item(f"{WRITES[type(item)]}.delta", delta=text, **shown)

    def _logprobs(self, item: OutputItem) -> dict[str, Any]:
        return {"logprobs": self._shown} if isinstance(item, MessageItem) else {}

    def _of_item(self, name: str, **fields: Any) -> bytes:
        """An event within the item that is being written."""
        item = self._item
        assert item is not None
        place: dict[str, Any] = {"item_id": item.id, "output_index": len(self._items) - 1}
        if not isinstance(item, FunctionCallItem):
            place["content_index"] = 0
        return self._tell(name, **place, **fields)


def _part(item: OutputItem) -> OutputText | ReasoningText | None:
    """Where the text of ``item`` is."""
    parts = [] if isinstance(item, FunctionCallItem) else item.content
    part = parts[0] if isinstance(parts, list) and parts else None
    return part if isinstance(part, OutputText | ReasoningText) else None
