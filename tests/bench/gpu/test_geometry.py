"""The bytes and operations of a model, held against sums done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from bench.gpu.geometry import LLAMA_3_1_8B, TINY, Geometry


def test_a_step_of_llama_8b_reads_15_gb_of_weights_and_128_kib_of_kv_a_token():
    geometry = Geometry("llama", LLAMA_3_1_8B)
    # 32 layers of (4096 x 6144 + 4096 x 4096 + 3 x 4096 x 14336 + 2 norms), a norm and the head.
    elements = 32 * (25_165_824 + 16_777_216 + 176_160_768 + 8192) + 4096 + 525_336_576
    assert geometry.weight_bytes == 2 * elements == 15_009_849_344
    assert geometry.kv_bytes == 131_072
    assert geometry.decode_bytes(1000) == 15_009_849_344 + 131_072_000


def test_weights_are_those_of_the_model_but_for_its_embeddings():
    config = dict(TINY)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config)
    )
    elements = sum(parameter.numel() for parameter in made.parameters())
    assert Geometry("tiny", TINY).weight_bytes == 2 * (elements - 512 * 64)


def test_a_prefill_needs_its_products_its_attention_and_the_end_of_one_row():
    # Two layers, hidden 64, vocabulary 512: qkv is 64 x 128, what follows 64 x (64 + 3 x 128).
    three = Geometry("tiny", TINY).prefill_operations(3)
    products = 2 * 3 * (2 * 8192 + 1 * 28_672)
    end = 2 * (28_672 + 512 * 64)
    attention = 2 * 4 * 64 * (1 + 2 + 3)
    assert three == products + end + attention


def test_8k_of_llama_8b_are_132_tera_operations_less_what_the_last_layer_drops():
    operations = Geometry("llama", LLAMA_3_1_8B).prefill_operations(8192)
    all_layers = 2 * 8192 * 32 * 218_103_808 + 32 * 4 * 4096 * 8192 * 8193 // 2
    assert operations / all_layers == pytest.approx(0.976, abs=0.001)
    assert operations == pytest.approx(1.289e14, rel=0.001)


def test_a_geometry_is_one_that_is_built_in_or_a_config_file(tmp_path: Path):
    file = tmp_path / "config.json"
    plain = {k: v for k, v in TINY.items() if k not in ("head_dim", "num_key_value_heads")}
    file.write_text(json.dumps(plain), encoding="utf-8")
    read = Geometry.named(str(file))
    assert (read.head_dim, read.kv_heads) == (16, 4)
    assert Geometry.named("tiny").config == TINY
    with pytest.raises(OSError, match="nowhere"):
        Geometry.named("nowhere.json")
