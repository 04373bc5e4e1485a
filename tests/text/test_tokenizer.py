from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from radixserve.errors import InvalidRequestError, ModelError
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.vocabulary import UNBOUNDED, read_bound
from radixserve.tokens import count, unpack
from tests.text import tiny

PIECES = [
    "hello",
    " the",
    "  ",
    "é",
    "안",
    "\u1112\u1161\u11ab",
    "<|im_start|>",
    "▁",
    "\x00",
    "<s>",
]
USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.tiny_tokenizer_dir(tmp_path / "model")


def in_memory(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, templates={}, eos_token_ids=[])


@given(text=st.text(max_size=50))
def test_text_survives_the_way_to_tokens_and_back(text: str) -> None:
    subject = in_memory(tiny.byte_level())
    assert subject.decode(unpack(subject.encode(text))) == text


def test_special_tokens_in_a_text_are_single_ids(directory: Path) -> None:
    subject = Tokenizer.load(directory)
    assert unpack(subject.encode("<|im_start|><|im_end|>")) == [1, 2]


def test_a_chat_prompt_has_exactly_the_specials_that_its_template_writes(tmp_path: Path) -> None:
    backend = tiny.sentencepiece()
    directory = tiny.tiny_tokenizer_dir(
        tmp_path, backend=backend, chat_template="<s>{{ messages[0]['content'] }}", eos_token="</s>"
    )
    subject = Tokenizer.load(directory)
    assert unpack(subject.encode("hello")).count(1) == 1
    assert unpack(subject.encode_chat(USER)).count(1) == 1
    assert unpack(subject.encode("hello", add_special_tokens=False)).count(1) == 0


def test_truncation_and_padding_in_the_files_do_not_touch_prompts(tmp_path: Path) -> None:
    backend = tiny.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=9, pad_token="<|endoftext|>")
    subject = Tokenizer.load(tiny.tiny_tokenizer_dir(tmp_path, backend=backend))
    assert count(subject.encode("abcdef")) == 6


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc00 ok"])
def test_half_a_surrogate_pair_is_refused_by_name(directory: Path, text: str) -> None:
    subject = Tokenizer.load(directory)
    with pytest.raises(InvalidRequestError) as caught:
        subject.encode(text)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError) as caught:
        subject.encode_chat([{"role": "user", "content": text}])
    assert caught.value.param == "messages"


def test_tokens_have_their_exact_bytes(directory: Path) -> None:
    subject = Tokenizer.load(directory)
    assert subject.token_bytes(3 + 0xE4) == b"\xe4"
    assert subject.token_text(3 + 0xE4) == "\ufffd"
    assert subject.token_bytes(2) == b"<|im_end|>"
    assert [subject.token_bytes(token) for token in (-1, 10**6)] == [b"", b""]
    sentencepiece = in_memory(tiny.sentencepiece())
    the = unpack(sentencepiece.encode("the", add_special_tokens=False))
    assert [sentencepiece.token_bytes(token) for token in the] == [b" the"]
    assert sentencepiece.token_bytes(3 + 0xE4) == b"\xe4"
    wordpiece = in_memory(tiny.wordpiece())
    assert (wordpiece.token_bytes(3), wordpiece.token_text(3)) == (b"cat", "cat")


def test_every_way_to_end_an_answer_is_known(directory: Path) -> None:
    assert Tokenizer.load(directory).eos_token_ids == (2,)
    config = directory / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [0, 2]}))
    subject = Tokenizer.load(directory)
    assert (subject.eos_token_id, subject.eos_token_ids) == (2, (2, 0))
    config.write_text(json.dumps({"eos_token_id": 1}))
    assert Tokenizer.load(directory).eos_token_ids == (2, 1)
    config.write_text("{}")
    assert Tokenizer.load(directory).eos_token_ids == (2,)
    config.write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        Tokenizer.load(directory)


def test_files_without_tokenizer_json_are_read_too(tmp_path: Path) -> None:
    backend = tiny.byte_level()
    backend.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer"})
    )
    subject = Tokenizer.load(tmp_path)
    assert unpack(subject.encode("hello é")) == backend.encode("hello é").ids


def test_a_tokenizer_without_a_fast_version_is_refused(tmp_path: Path) -> None:
    config = {"tokenizer_class": "ByT5Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="fast version"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "broken", "empty"):
        with pytest.raises(ModelError) as caught:
            Tokenizer.load(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_template_file_replaces_the_models_own(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("Q: {{ messages[0].content }} A:")
    subject = Tokenizer.load(directory, chat_template=file)
    assert subject.render_chat(USER) == "Q: hello A:"


@pytest.mark.parametrize("content", [b"{% if %}", b"\xff\xfe\xff", None])
def test_a_template_file_that_cannot_be_used_is_refused_at_once(
    directory: Path, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "template.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=r"template\.jinja"):
        Tokenizer.load(directory, chat_template=file)


def test_a_model_without_a_template_says_how_to_give_it_one(tmp_path: Path) -> None:
    subject = Tokenizer.load(tiny.tiny_tokenizer_dir(tmp_path, chat_template=None))
    assert not subject.has_chat_template
    with pytest.raises(InvalidRequestError, match="--chat-template") as caught:
        subject.encode_chat(USER)
    assert caught.value.param == "messages"


def test_tools_are_rendered_by_the_template_made_for_them(tmp_path: Path) -> None:
    directory = tiny.tiny_tokenizer_dir(tmp_path, chat_template=None)
    config = directory / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    config.write_text(json.dumps(settings))
    subject = Tokenizer.load(directory)
    assert subject.render_chat(USER) == "plain"
    assert subject.render_chat(USER, tools=[{"name": "añadir"}]) == '[{"name": "añadir"}]'


def test_threads_share_a_tokenizer(directory: Path) -> None:
    subject = Tokenizer.load(directory)
    chats = [[{"role": "user", "content": f"hello {number} é" * 50}] for number in range(64)]
    expected = [subject.encode_chat(chat) for chat in chats]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(subject.encode_chat, chats)) == expected


def test_other_threads_run_while_a_long_text_is_tokenized(directory: Path) -> None:
    subject = Tokenizer.load(directory)
    turns: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            turns.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    begun = time.perf_counter()
    subject.encode("the quick brown fox " * 100_000)
    ended = time.perf_counter()
    done.set()
    ticker.join()
    assert sum(begun < turn < ended for turn in turns) >= 10


def with_nfc() -> Backend:
    backend = tiny.byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


@pytest.mark.parametrize("backend", [tiny.byte_level(), tiny.sentencepiece(), with_nfc()])
@given(text=st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_no_text_takes_fewer_tokens_than_told(backend: Backend, text: str) -> None:
    subject = in_memory(backend)
    tokens = count(subject.encode(text, add_special_tokens=False))
    assert read_bound(backend).longest < UNBOUNDED
    assert subject.fewest_tokens(text) <= tokens


def test_composed_characters_take_as_few_tokens_as_told() -> None:
    backend = tiny.byte_level(specials=())
    backend.normalizer = normalizers.NFC()
    backend.add_tokens([AddedToken("각", normalized=True)])
    subject = in_memory(backend)
    text = "\u1100\u1161\u11a8" * 100
    assert subject.fewest_tokens(text) <= count(subject.encode(text)) == 100


def test_a_text_of_the_longest_token_takes_as_few_tokens_as_told() -> None:
    backend = tiny.byte_level()
    assert read_bound(backend).longest == len("<|endoftext|>")
    subject = in_memory(backend)
    assert subject.fewest_tokens("<|endoftext|>" * 100) == 100
    assert count(subject.encode("<|endoftext|>" * 100)) == 100


def test_bytes_that_the_tokenizer_drops_count_for_nothing() -> None:
    specification = json.loads(tiny.byte_level(merges=False).to_str())
    del specification["model"]["vocab"]["!"]
    subject = in_memory(Backend.from_str(json.dumps(specification)))
    text = "!" * 1000 + "<|endoftext|>"
    assert count(subject.encode(text)) == 1
    assert subject.fewest_tokens(text) == 1


def test_where_text_can_vanish_nothing_is_told() -> None:
    lowercase, removing, swallowing = (tiny.byte_level() for _ in range(3))
    lowercase.normalizer = normalizers.Lowercase()
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    swallowing.add_tokens([AddedToken("<mask>", lstrip=True)])
    for backend in (lowercase, removing, swallowing, tiny.wordpiece(), tiny.metaspace()):
        assert read_bound(backend).longest == UNBOUNDED
        assert in_memory(backend).fewest_tokens(" " * 10_000) <= 1
