"""Chat messages to prompt text, by the model's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

from radixserve.errors import InvalidRequestError, ModelError

PROBE = "radixserve-probe"
RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversations",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    }
)
"""What a request says elsewhere, and so cannot say again among its template arguments."""


class ChatTemplate:
    """A chat template in transformers' format, rendered in its sandbox.

    Args:
        source: Jinja text.
        specials: The model's special tokens by name (``bos_token``, ...), as templates use them.

    Raises:
        ModelError: the template is not valid Jinja.
    """

    def __init__(self, source: str, specials: Mapping[str, str]):
        self._source = source
        self._specials = dict(specials)
        try:
            with_text = self._probe(PROBE)
        except TemplateSyntaxError as error:
            raise ModelError(f"line {error.lineno}: {error.message}") from error
        with_parts = self._probe([{"type": "text", "text": PROBE}])
        takes_text = with_text is not None and PROBE in with_text
        self._takes_parts = (
            with_parts == with_text
            if takes_text
            else with_parts is not None and PROBE in with_parts
        )
        self._needs_parts = self._takes_parts and not takes_text

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of ``messages``.

        Raises:
            InvalidRequestError: the template refuses the messages or fails on them, a content
                part is not text, or two settings contradict each other; ``param`` says where.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt cannot both be true.",
                param="continue_final_message",
            )
        extra = dict(template_kwargs or {})
        if taken := sorted(RESERVED & extra.keys()):
            raise InvalidRequestError(
                f"{taken[0]} cannot be set through chat_template_kwargs.",
                param=f"chat_template_kwargs.{taken[0]}",
            )
        if not messages:
            raise InvalidRequestError("messages must not be empty.", param="messages")
        prepared = [self._prepare(index, message) for index, message in enumerate(messages)]
        try:
            return self._render(
                prepared,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **{**self._specials, **extra},
            )
        # A template is a program of the model's authors: whatever it raises, it raises over
        # these messages.
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise InvalidRequestError(
                f"The model's chat template cannot render these messages: {reason}",
                param="messages",
            ) from error

    def _render(self, messages: list[dict[str, Any]], **settings: Any) -> str:
        texts, _ = render_jinja_template([messages], chat_template=self._source, **settings)
        return str(texts[0])

    def _probe(self, content: str | list[dict[str, str]]) -> str | None:
        """How the template renders ``content``, or None if it cannot.

        Raises:
            TemplateSyntaxError: the template does not compile.
        """
        try:
            return self._render([{"role": "user", "content": content}], **self._specials)
        except TemplateSyntaxError:
            raise
        except Exception:
            return None

    def _prepare(self, index: int, message: dict[str, Any]) -> dict[str, Any]:
        """The message as templates know it: no nulls, content in the form that this one takes."""
        path = f"messages.{index}"
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{path} must be an object.", param=path)
        prepared = {key: value for key, value in message.items() if value is not None}
        prepared["content"] = self._content(f"{path}.content", prepared.get("content", ""))
        if calls := prepared.pop("tool_calls", None):
            prepared["tool_calls"] = [
                _with_parsed_arguments(f"{path}.tool_calls.{position}", call)
                for position, call in enumerate(calls)
            ]
        return prepared

    def _content(self, path: str, content: object) -> str | list[dict[str, str]]:
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self._needs_parts else content
        if not isinstance(content, list):
            raise InvalidRequestError(
                f"{path} must be a string or a list of text parts.", param=path
            )
        texts = [_part_text(f"{path}.{position}", part) for position, part in enumerate(content)]
        if self._takes_parts:
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)


def _part_text(path: str, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind != "text":
        raise InvalidRequestError(
            f"{path}.type must be 'text', not {kind!r}: this server takes text only.",
            param=f"{path}.type",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path}.text must be a string.", param=f"{path}.text")
    return text


def _with_parsed_arguments(path: str, call: object) -> dict[str, Any]:
    """The tool call with its arguments as an object: templates write them out as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequestError(f"{path}.function must be an object.", param=f"{path}.function")
    arguments = function.get("arguments")
    if isinstance(arguments, str) or arguments is None:
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise InvalidRequestError(
                f"{path}.function.arguments is not valid JSON: {error}",
                param=f"{path}.function.arguments",
            ) from error
    return {**call, "function": {**function, "arguments": arguments}}
