"""What chats have in common, whatever is said in them next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixserve.config import EngineConfig
from radixserve.engine.model_files import prepare
from radixserve.errors import ContextLengthError, InvalidRequestError
from radixserve.text.public_prefix import public_prefix
from radixserve.text.tokenizer import Tokenizer
from tests.text.tiny import sentencepiece, tiny_tokenizer_dir

SYSTEM = [{"role": "system", "content": "You help the people of the hill."}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Tells it.", "parameters": {}},
    }
]


def chat(text: str, role: str = "user") -> list[dict[str, str]]:
    return [*SYSTEM, {"role": role, "content": text}]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir(tmp_path))


def test_it_is_what_the_template_puts_before_whatever_comes_next(tokenizer: Tokenizer) -> None:
    prefix = public_prefix(tokenizer.encode_chat, SYSTEM)
    text = "<|im_start|>system\nYou help the people of the hill.<|im_end|>\n<|im_start|>"
    assert prefix == tokenizer.encode(text, add_special_tokens=False)
    for message in ("Hello", "\n", " the", "ell", ""):
        for role in ("user", "assistant", "tool"):
            assert tokenizer.encode_chat(chat(message, role)).startswith(prefix)


def test_it_is_floored_to_whole_pages(tokenizer: Tokenizer) -> None:
    whole = public_prefix(tokenizer.encode_chat, SYSTEM)
    for size in (4, 16, 1000):
        floored = public_prefix(tokenizer.encode_chat, SYSTEM, page_size=size)
        assert whole.startswith(floored)
        assert 0 <= len(whole) - len(floored) < 4 * size
        assert len(floored) % (4 * size) == 0


def test_what_is_too_long_for_any_chat_is_refused_before_much_is_tokenized(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    encode_chat = tokenizer.encode_chat

    def counted(*arguments: Any, **settings: Any) -> bytes:
        asked.append(arguments)
        return encode_chat(*arguments, **settings)

    monkeypatch.setattr(tokenizer, "encode_chat", counted)
    long = [{"role": "system", "content": "x" * 1000}]
    with pytest.raises(ContextLengthError, match="maximum context length is 1000"):
        public_prefix(tokenizer.encode_chat, long, limit=1000)
    assert len(asked) == 1
    assert public_prefix(tokenizer.encode_chat, long, limit=1100)


def test_a_template_that_takes_users_and_assistants_in_turn_is_asked_for_what_it_takes(
    tmp_path: Path,
) -> None:
    strict = (
        "{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Take turns!') }}{% endif %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}{% endfor %}"
    )
    tokenizer = Tokenizer.load(tiny_tokenizer_dir(tmp_path, chat_template=strict))
    user = [{"role": "user", "content": "the hill"}]
    expected = tokenizer.encode(
        "<|im_start|>user\nthe hill<|im_start|>assistant\n", add_special_tokens=False
    )
    assert public_prefix(tokenizer.encode_chat, user) == expected
    with pytest.raises(InvalidRequestError, match="Take turns"):
        public_prefix(tokenizer.encode_chat, SYSTEM)


def test_a_token_that_reaches_into_what_comes_next_is_left_out(tmp_path: Path) -> None:
    glued = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    directory = tiny_tokenizer_dir(tmp_path, chat_template=glued)
    tokenizer = Tokenizer.load(directory)
    prefix = public_prefix(tokenizer.encode_chat, [{"role": "system", "content": "I say he"}])
    for message in ("ll", "llo", "a", " the"):
        tokens = tokenizer.encode_chat(
            [{"role": "system", "content": "I say he"}, {"role": "user", "content": message}]
        )
        assert message == "ll" or message == "llo" or tokens.startswith(prefix)


def test_a_template_that_keeps_only_the_last_message_has_nothing_in_common(tmp_path: Path) -> None:
    last = "{{ messages[-1]['content'] }}"
    tokenizer = Tokenizer.load(tiny_tokenizer_dir(tmp_path, chat_template=last))
    assert public_prefix(tokenizer.encode_chat, SYSTEM) == b""


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    directory = tiny_tokenizer_dir(tmp_path, backend=sentencepiece(), chat_template=None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        public_prefix(Tokenizer.load(directory).encode_chat, SYSTEM)


@pytest.mark.slow
def test_with_the_demo_models_template_the_system_prompt_is_common_and_little_else() -> None:
    tokenizer = Tokenizer.load(prepare(EngineConfig()).tokenizer)
    prefix = public_prefix(tokenizer.encode_chat, SYSTEM, tools=TOOLS)
    assert prefix
    for message in ("Hello!", " hi", "\n\n", "안녕", "<|im_end|>"):
        assert tokenizer.encode_chat(chat(message), tools=TOOLS).startswith(prefix)
    assert tokenizer.encode_chat(chat("Hi"), tools=TOOLS)[len(prefix) :]
    other = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi"}]
    assert not tokenizer.encode_chat(other, tools=TOOLS).startswith(prefix)
