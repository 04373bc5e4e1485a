"""Chat messages to prompt text, by the model's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

from radixserve.errors import InvalidRequestError, ModelError, what_is_wrong

PROBE = "radixserve-probe"
PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "radixserve_probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
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
        self.source = source
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
        with_tools = self._probe(PROBE, tools=[PROBE_TOOL])
        self.takes_tools = with_tools is not None and PROBE_TOOL["function"]["name"] in with_tools
        """Whether the template tells the model of tools."""
        self._arguments_as_text = self.takes_tools and not self._writes_arguments()

    def may_write(self, text: str) -> bool:
        """Whether ``text`` stands in the template, or is a special token that it knows by name."""
        return text in self.source or any(
            text == token and name in self.source for name, token in self._specials.items()
        )

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
        texts, _ = render_jinja_template([messages], chat_template=self.source, **settings)
        return str(texts[0])

    def _writes_arguments(self) -> bool:
        """Whether the template itself makes JSON of a call's arguments, or the like."""
        call = {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "radixserve_probe", "arguments": {PROBE: 1}},
        }
        content: Any = [{"type": "text", "text": PROBE}] if self._needs_parts else PROBE
        messages = [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            shown = self._render(messages, tools=[PROBE_TOOL], **self._specials)
        except Exception:
            return False
        # Python writes its own objects with other quotes than JSON has.
        return PROBE in shown and f"'{PROBE}'" not in shown

    def _probe(
        self, content: str | list[dict[str, str]], tools: list[dict[str, Any]] | None = None
    ) -> str | None:
        """How the template renders ``content``, or None if it cannot.

        Raises:
            TemplateSyntaxError: the template does not compile.
        """
        try:
            messages = [{"role": "user", "content": content}]
            return self._render(messages, tools=tools, **self._specials)
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
            if not isinstance(calls, list):
                place = f"{path}.tool_calls"
                raise InvalidRequestError(f"{place} must be a list.", param=place)
            prepared["tool_calls"] = [
                self._with_arguments(f"{path}.tool_calls.{position}", call)
                for position, call in enumerate(calls)
            ]
        return _with_reasoning(prepared)

    def _with_arguments(self, path: str, call: object) -> dict[str, Any]:
        """The tool call with its arguments as this template takes them: an object, or JSON."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise InvalidRequestError(
                f"{path}.function must be an object.", param=f"{path}.function"
            )
        given = function.get("arguments")
        arguments = _parsed(f"{path}.function.arguments", given)
        if self._arguments_as_text:
            # What the model wrote stays as it was: so the next turn finds the last one cached.
            arguments = given if given and isinstance(given, str) else json.dumps(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

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


def _parsed(path: str, arguments: object) -> object:
    if not isinstance(arguments, str) and arguments is not None:
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"{path} is not valid JSON: {what_is_wrong(error)}",
            param=path,
        ) from error


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under every name by which templates ask for it."""
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if not reasoning or message.get("role") != "assistant":
        return message
    names = ("reasoning", "reasoning_content", "thinking")
    return {**dict.fromkeys(names, reasoning), **message}
