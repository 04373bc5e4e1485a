"""The embedder of the examples, with a tiny model of the same family."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertModel, BertTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "tree", "has", "nodes", "page", "."]
TEXTS = ["a tree has nodes .", "a page .", "page page page page tree", "a page ."]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    (directory / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizer(str(directory / "vocab.txt")).save_pretrained(directory)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(directory)
    return directory


@pytest.fixture
def minilm() -> Any:
    return importlib.import_module("minilm")


def test_vectors_have_length_1_and_come_in_the_order_of_the_texts(
    files: Path, minilm: Any, tmp_path: Path
):
    model = minilm.MiniLM(files, tmp_path / "vectors.pt")
    found = model.embed(TEXTS)
    assert [math.hypot(*vector) for vector in found] == pytest.approx([1.0] * len(TEXTS))
    for text, vector in zip(TEXTS, found, strict=True):
        alone = minilm.MiniLM(files, tmp_path / "none.pt").embed([text])[0]
        assert vector == pytest.approx(alone, abs=1e-5)
    assert found[0] != pytest.approx(found[1], abs=1e-3)


def test_the_next_run_finds_the_vectors_and_computes_what_is_new(
    files: Path, minilm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = tmp_path / "vectors.pt"
    before = minilm.MiniLM(files, kept).embed(TEXTS)
    model = minilm.MiniLM(files, kept)
    computed: list[str] = []
    vectors_of = model._computed
    monkeypatch.setattr(
        model, "_computed", lambda texts: computed.extend(texts) or vectors_of(texts)
    )
    after = model.embed([*TEXTS, "nodes nodes"])
    for one, other in zip(before, after, strict=False):
        assert one == pytest.approx(other)
    assert computed == ["nodes nodes"]


def test_a_text_is_tokens_without_those_of_the_model(files: Path, minilm: Any, tmp_path: Path):
    model = minilm.MiniLM(files, tmp_path / "vectors.pt")
    assert [WORDS[token] for token in model.tokens("a tree .")] == ["a", "tree", "."]
