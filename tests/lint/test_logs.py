"""Logs in all their forms, broken ones among them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from radixserve.lint.analysis import Analysis, FullError
from radixserve.lint.logs import TOLD, Faults, Request, read
from radixserve.lint.recent import ENDS, Recent
from radixserve.lint.tokens import About
from radixserve.simulation import lines
from tests.lint.logs import RULES, chat, linted, tool, write

BODY = chat("Be kind.", "Question?")


def requests(path: Path) -> tuple[list[Request], Faults]:
    faults = Faults()
    return list(read(path, faults)), faults


@pytest.mark.parametrize(
    "line",
    [
        BODY,
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
        {"custom_id": "1", "params": BODY},
        {"time": 3, "request": {"headers": {}, "body": BODY}},
        {"request": json.dumps(BODY)},
        [BODY],
        {"model": "m", "messages": BODY["messages"], "response": {"id": "1"}},
        {"model": "m", "messages": json.dumps(BODY["messages"])},
        {"messages": {}, "proxy_server_request": json.dumps(BODY)},
        {"type": "GENERATION", "model": "m", "input": {"messages": BODY["messages"]}},
        {"model": "m", "inputs": {"messages": BODY["messages"]}},
        {"request_body": BODY, "response_body": {}},
    ],
    ids=[
        "bare",
        "batch",
        "anthropic's batch",
        "nested",
        "as text",
        "list",
        "with an answer",
        "messages as text",
        "of a gateway",
        "of a tracer",
        "of a chain",
        "of a proxy",
    ],
)
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_request_is_found_in_its_wrapper(tmp_path: Path, name: str, line: Any):
    [found], faults = requests(write(tmp_path / name, [line]))
    assert BODY.items() <= found.body.items()
    assert [part.pointer for part in found.parts] == ["/messages/0", "/messages/1"]
    assert faults.count == 0


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_over_many_lines_is_read_as_a_whole(tmp_path: Path, indent: int | None):
    file = tmp_path / "export.json"
    items = ",\n".join(json.dumps(each, indent=indent) for each in (BODY, {}, BODY))
    file.write_text(f"[{items}\n]\n")
    found, faults = requests(file)
    assert [request.place for request in found] == [f"{file}, item 0", f"{file}, item 2"]
    assert faults.told == [
        f"{file}, item 1: no request: it has neither messages nor prompt nor input"
    ]


def test_a_list_that_is_longer_than_a_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("radixserve.lint.logs.LONGEST", 1000)
    file = tmp_path / "export.json"
    file.write_text(json.dumps([BODY] * 100, indent=2))
    found, faults = requests(file)
    assert not found
    [told] = faults.told
    assert "one object a line, as jq -c '.[]' writes" in told


@pytest.mark.parametrize("around", ["model_parameters", "modelParameters", "optional_params"])
def test_tools_and_the_model_beside_the_messages_belong_to_the_prompt(tmp_path: Path, around: str):
    body = chat("Be kind.", "Hi", tools=[tool("find")])
    messages, tools = body["messages"], body["tools"]
    lines = [
        {"model": "m", "messages": messages, around: {"tools": tools}},
        {"model": "m", around: {"temperature": 0}, "input": {"messages": messages, "tools": tools}},
    ]
    found, faults = requests(write(tmp_path / "log.jsonl", lines))
    assert not faults.count
    assert [[part.pointer for part in each.parts] for each in found] == [
        ["/tools", "/messages/0", "/messages/1"]
    ] * 2
    assert {each.tenant for each in found} == {"m\n"}


def test_a_prompt_that_is_json_stays_a_text(tmp_path: Path):
    prompts = ['{"question": "Hi"}', "[INST] Hi", "[1, 2]"]
    found, faults = requests(write(tmp_path / "log.jsonl", [{"prompt": each} for each in prompts]))
    assert not faults.count
    assert [each.body["prompt"] for each in found] == prompts


@pytest.mark.parametrize("text", ["Once upon", "[INST] Hi [/INST]"])
def test_the_text_of_a_text_generation_server_is_a_prompt(tmp_path: Path, text: str):
    line = {"inputs": text, "parameters": {"max_new_tokens": 3}}
    [found], faults = requests(write(tmp_path / "log.jsonl", [line]))
    assert [(part.pointer, part.text) for part in found.parts] == [("/prompt", text)]
    assert faults.count == 0


def test_anthropics_system_prompt_and_tools_stand_in_front(tmp_path: Path):
    body = {
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": {}}],
    }
    [found], _ = requests(write(tmp_path / "log.jsonl", [body]))
    assert [part.pointer for part in found.parts] == ["/tools", "/system", "/messages/0"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{broken", "JSON is malformed"),
        (b"\x00\xff\xfe\x01", "JSON is malformed"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"messages": 5}', "no request: messages must be a list"),
        (b'{"messages": "Hi"}', "no request: messages must be a list"),
        (b'{"input": 5}', "no request: input must be a text or a list"),
        (b'{"prompt": {"a": 1}}', "neither messages nor prompt nor input"),
        (
            b'{"timestamp": 1, "hash_ids": [1]}',
            "looks like a trace",
        ),
        (b'{"messages": [{"role": "user"}], "system": true}', "system must be a text or a list"),
        (b"3", "it is no object"),
        (b'"text"', "it is no object"),
        (b'{"request": "text"}', "neither messages nor prompt nor input"),
        (b'{"inputs": ["text"]}', "neither messages nor prompt nor input"),
        (b"{}", "neither messages nor prompt nor input"),
        (b'{"response": {"status_code": 200}}', "neither messages nor prompt nor input"),
        (b'{"body": {"body": {"body": {"body": {"messages": []}}}}}', "neither messages nor"),
        (b'{"messages": []}', "it is empty"),
        (b'{"messages": [3]}', "messages.0 must be an object"),
        (b'{"messages": [{"content": "Hi"}]}', "messages.0.role must be a string"),
        (b'{"messages": [{"role": "user"}], "tools": [3]}', "tools must be a list of objects"),
        (b'{"prompt": ""}', "it is empty"),
        (b'{"request": "{broken"}', "JSON is malformed"),
    ],
)
def test_what_is_no_request_is_named_by_its_place_and_the_rest_is_kept(
    tmp_path: Path, line: bytes, why: str
):
    file = tmp_path / "log.jsonl"
    body = json.dumps(BODY).encode()
    file.write_bytes(b"\n".join([body, line, b"", body]))
    found, faults = requests(file)
    assert [request.place for request in found] == [f"{file}, line 1", f"{file}, line 4"]
    assert faults.count == 1
    [told] = faults.told
    assert told.startswith(f"{file}, line 2: ")
    assert why in told


@pytest.mark.parametrize("content", [b"", b"\n  \n", gzip.compress(b"", mtime=0)])
def test_a_file_with_nothing_in_it_is_named(tmp_path: Path, content: bytes):
    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    found, faults = requests(file)
    assert (found, faults.told) == ([], [f"{file}: is empty"])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (json.dumps(BODY).encode("utf-16"), "UTF-16"),
        (bytes.fromhex("28b52ffd2400"), "zstd"),
        (lzma.compress(b"{}"), "xz"),
        (bz2.compress(b"{}"), "bzip2"),
        (b"PK\x03\x04 and more", "zip"),
    ],
)
def test_a_file_that_has_no_lines_is_called_what_it_is(tmp_path: Path, content: bytes, why: str):
    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    found, faults = requests(file)
    assert (found, faults.count) == ([], 1)
    assert why in faults.told[0]


def test_one_of_a_list_is_named_by_its_index(tmp_path: Path):
    found, faults = requests(write(tmp_path / "log.json", [[BODY, {}, BODY]]))
    assert [request.place[-6:] for request in found] == ["item 0", "item 2"]
    assert "line 1, item 1: no request" in faults.told[0]


def test_compressed_data_that_ends_too_soon_keeps_what_came_before(tmp_path: Path):
    lines = "".join(json.dumps(chat(RULES, f"Question {n}")) + "\n" for n in range(2000))
    whole = gzip.compress(lines.encode())
    file = tmp_path / "log.gz"
    file.write_bytes(whole[: len(whole) // 2])
    found, faults = requests(file)
    assert found
    assert "the compressed data ends or breaks here" in faults.told[0]
    broken = bytearray(whole)
    broken[len(whole) // 2 :] = b"x" * (len(whole) - len(whole) // 2)
    file.write_bytes(broken)
    assert requests(file)[1].count >= 1


def test_a_line_without_an_end_takes_no_more_memory_than_a_line_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "LONGEST", 1000)
    file = tmp_path / "log.jsonl"
    body = json.dumps(BODY).encode()
    file.write_bytes(b"x" * 10_500 + b"\n" + body + b"\n" + b"y" * 3000)
    found, faults = requests(file)
    assert [request.place for request in found] == [f"{file}, line 2"]
    assert [told.partition(": ")[0] for told in faults.told] == [
        f"{file}, line 1",
        f"{file}, line 3",
    ]


def test_a_mark_of_the_encoding_is_no_part_of_the_first_line(tmp_path: Path):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(BODY) + "\n", encoding="utf-8-sig")
    found, faults = requests(file)
    assert [request.place for request in found] == [f"{file}, line 1"]
    assert not faults.count


def test_of_many_faults_only_the_first_are_kept(tmp_path: Path):
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\x00\n" * 5000)
    found, faults = requests(file)
    assert (found, faults.count, len(faults.told)) == ([], 5000, TOLD)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path):
    _, faults = requests(tmp_path / "none.jsonl")
    assert "cannot be read: No such file" in faults.told[0]


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path):
    for name in ("log.jsonl", "log.jsonl.gz"):
        file = write(tmp_path / name, [BODY] * 500)
        told: list[int] = []
        list(read(file, Faults(), told.append))
        assert sum(told) == file.stat().st_size


def test_images_count_little_and_by_what_is_on_them(tmp_path: Path):
    def image(data: str) -> dict[str, Any]:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return {"messages": [{"role": "user", "content": [url]}]}

    report = linted(tmp_path, [image("A" * 100_000), image("A" * 100_000), image("B" * 100_000)])
    assert report.tokens < 100
    assert 0 < report.shared.tokens < 25


def test_halves_of_surrogates_do_no_harm(tmp_path: Path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "\\ud800 Hi"}]}\n' * 2)
    found, faults = requests(file)
    assert len(found) + faults.count == 2


def test_what_is_kept_of_a_log_is_bounded(tmp_path: Path):
    file = write(tmp_path / "log.jsonl", [chat(RULES, f"Question {n}") for n in range(200)])
    found, _ = requests(file)
    size = len(found[0].raw)
    recent = Recent(room=10 * size)
    for request in found:
        recent.add(request, 9)
    assert len(recent._kept) <= 10
    assert len(recent._heads) <= 1 + 10
    assert len(recent._holders) <= 1 + 2 * len(ENDS) + 10  # ends of the rules are marks, too
    nearest = recent.nearest(found[0])
    assert nearest is not None
    assert nearest.place == found[-1].place


def test_a_phrase_that_many_begin_with_weighs_no_more_than_it_is(tmp_path: Path):
    phrase = "Please summarise the following article in three sentences that a child understands: "
    other = chat(RULES[::-1], phrase + "herring " * 7000)
    bodies = [chat(RULES, "Why?"), other, chat(RULES, phrase + "fjord " * 8000)]
    found, _ = requests(write(tmp_path / "log.jsonl", bodies))
    recent = Recent(room=2**20)
    for request in found[:2]:
        recent.add(request, 9)
    nearest = recent.nearest(found[2])
    assert nearest is not None
    assert nearest.place == found[0].place


def test_a_log_that_has_too_much_in_it_is_left_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("radixserve.lint.analysis.MOST_TOKENS", 700)
    found, _ = requests(write(tmp_path / "log.jsonl", [chat(f"{n} {RULES}", "?") for n in "abc"]))
    analysis = Analysis(About(), 16)
    analysis.add(found[0])
    with pytest.raises(FullError):
        analysis.add(found[1])
    assert analysis.report(5000).requests == 1
