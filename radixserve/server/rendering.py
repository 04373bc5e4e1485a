"""A chat as the model reads it: its text, and where in that places of the chat are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from radixserve.server.recall import Recalled, own_calls, recalled
from radixserve.server.service import Service
from radixserve.server.text_memory import Owner
from radixserve.server.wire import ChatRequest
from radixserve.text.marked import Spot, marked_ends, moved

Dicts = list[dict[str, Any]]
Write = Callable[[Dicts, Dicts], Recalled]
"""Messages and tools to a prompt."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and what it was made of."""

    prompt: Recalled
    canonical: list[str]
    """Canonical forms that changed it."""
    messages: Dicts
    tools: Dicts
    sent: Dicts
    """The tools in the order in which the client has them."""
    write: Write

    @property
    def text(self) -> str:
        return self.prompt.text

    def ends(self, spots: Sequence[Spot]) -> list[int]:
        """Characters of the text up to each of ``spots``, which are on messages and tools as they
        were sent. O(renderings) for each."""
        return [self._answers_end(spot) or self._end(spot) for spot in spots]

    def _end(self, spot: Spot) -> int:
        def render(messages: Dicts, tools: Dicts) -> str:
            return self.write(messages, tools).text

        spot = moved(spot, self.sent, self.tools)
        [end] = marked_ends(render, self.text, self.messages, self.tools, [spot])
        return end

    def _answers_end(self, spot: Spot) -> int | None:
        """Where an answer ends that stands there as it was generated, if ``spot`` is its end: what
        the template would write of it says nothing of that."""
        if spot.message is None or spot.message not in self.prompt.said:
            return None
        message = self.messages[spot.message]
        last = spot.part is None
        if not last and not message.get("tool_calls"):
            last = spot.part == len(message["content"]) - 1
        return self.prompt.said[spot.message] if last else None


def rendered(
    service: Service,
    fields: ChatRequest,
    tools: Dicts,
    template_kwargs: dict[str, Any] | None,
    owner: Owner | None,
) -> Rendered:
    """The prompt as the model's template has it, with earlier answers as they were generated for
    ``owner``; with their reasoning where ``keep_reasoning`` is wanted.

    Raises:
        InvalidRequestError: the template refuses the messages.
    """
    continued = bool(fields.continue_final_message)
    opened = fields.add_generation_prompt
    if opened is None:
        opened = not (continued or fields.prewarms)
    render = partial(
        service.frontend.tokenizer.render_chat,
        add_generation_prompt=opened,
        continue_final_message=continued,
        template_kwargs=template_kwargs,
    )
    keeps = keeps_reasoning(service, fields.keep_reasoning)

    def write(messages: Dicts, tools: Dicts) -> Recalled:
        written = partial(render, tools=tools)
        return recalled(messages, written, service.memory, owner, keeps_reasoning=keeps)

    own = own_calls(service.memory, owner)
    messages, shown, canonical = service.canonical.applied(fields.messages, tools, own)
    prompt = write(messages, shown)
    return Rendered(prompt, canonical, messages, shown, tools, write)


def chat_encoder(
    service: Service, fields: ChatRequest, owner: Owner | None
) -> Callable[..., bytes]:
    """``Tokenizer.encode_chat`` as requests like ``fields`` have it; it raises ContextLengthError
    before it tokenizes what must be too long."""
    keeps = keeps_reasoning(service, fields.keep_reasoning)

    def encode_chat(messages: Dicts, **settings: Any) -> bytes:
        render = partial(service.frontend.tokenizer.render_chat, **settings)
        text = recalled(messages, render, service.memory, owner, keeps_reasoning=keeps).text
        fewest = service.frontend.tokenizer.fewest_tokens(text)
        service.check_length(fewest, "messages", at_least=True)
        return service.memory.encode(text, owner, param="messages").tokens

    return encode_chat


def keeps_reasoning(service: Service, wanted: bool | None) -> bool:
    """Whether earlier answers stay as they were generated; ``wanted`` is what a request says."""
    return service.settings.keep_reasoning if wanted is None else wanted
