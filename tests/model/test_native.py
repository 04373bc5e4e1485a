"""The native decoder gives the logits of transformers, for every form that the family takes."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, LlamaConfig, PreTrainedConfig

from radixserve.attention import cpu
from radixserve.attention.arrays import paged_batch
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.model import native
from radixserve.model.execution import executable
from radixserve.model.kv_storage import KvStorage
from radixserve.model.loader import describe
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.kernels.instructions import HERE, OLDER, made_for
from tests.model import tiny

SMALL = tiny.small(heads=6, inner=90)  # sizes that fill no panel
FORMS = tiny.forms(SMALL)
PROMPT = [(29 * i * i + 3 * i + 5) % 250 for i in range(70)]

pytestmark = pytest.mark.skipif(
    cpu.kernels() is None, reason="there is no C++ compiler to make the native kernels with"
)


@pytest.fixture
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels are those for ``HERE`` or one of ``OLDER``."""
    native = made_for(request.param)
    monkeypatch.setattr(cpu, "kernels", lambda: native)
    return str(request.param)


on_any_processor = pytest.mark.parametrize("processor", [HERE, *OLDER], indirect=True)


def logits(directory: Path, prompt: list[int], **settings: Any) -> tuple[torch.Tensor, str]:
    """Logits of all tokens of ``prompt``, in chunks of 50, and who computed them."""
    config = EngineConfig(**{"dtype": "float32", "device": "cpu", "threads": 1, **settings})
    model = executable(describe(directory, config), config)
    storage = KvStorage(model.geometry, 20, config.page_size, torch.device("cpu"))
    if storage.kv.dtype.is_floating_point:
        storage.kv.fill_(torch.nan)
    run, pages, found = model.on(storage.kv), array("i", [7, 3, 11, 1, 15]), []
    for start in range(0, len(prompt), 50):
        row = Row("r", pack(prompt[start : start + 50]), start, pages, SamplingParams())
        batch = paged_batch(StepPlan(1, [row]), config.page_size)
        batch.sample_rows = torch.arange(len(batch.token_ids))
        found.append(run(batch))
    return torch.cat(found), model.name


@pytest.mark.parametrize(
    ("form", "processor"),
    [(form, HERE) for form in FORMS]
    + [(form, older) for form in ("plain", "biases") for older in OLDER],
    indirect=["processor"],
)
def test_each_form_of_the_family_gives_the_logits_of_transformers(
    tmp_path: Path, form: str, processor: str
):
    directory = tiny.save(tmp_path, FORMS[form])
    found, name = logits(directory, PROMPT)
    assert name.startswith("native decoder")
    torch.testing.assert_close(found, tiny.truth(directory, PROMPT), atol=2e-4, rtol=2e-4)


@on_any_processor
def test_in_bf16_it_is_as_close_to_the_truth_as_transformers_is(tmp_path: Path, processor: str):
    directory = tiny.save(tmp_path, FORMS["plain"])
    truth = tiny.truth(directory, PROMPT)
    found, name = logits(directory, PROMPT, dtype="bfloat16")
    assert name.startswith("native decoder")
    theirs = (tiny.truth(directory, PROMPT, torch.bfloat16) - truth).norm()
    assert (found - truth).norm() < 1.2 * theirs


@pytest.mark.parametrize("code", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize(
    ("backend", "processor"),
    [("native", HERE), *(("auto", processor) for processor in (HERE, *OLDER))],
    indirect=["processor"],
)
def test_kv_in_8_bits_changes_little(tmp_path: Path, code: str, backend: str, processor: str):
    directory = tiny.save(tmp_path, FORMS["tied embeddings"])
    exact, _ = logits(directory, PROMPT)
    found, _ = logits(directory, PROMPT, kv_cache_dtype=code, attention_backend=backend)
    spread = (exact - exact.mean(-1, keepdim=True)).norm()
    # Random weights, whose attention is sharp, magnify what is lost.
    assert 0 < (found - exact).norm() / spread < (0.1 if code == "int8" else 0.3)


@pytest.mark.parametrize("form", ["tied embeddings", "plain", "biases"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_8_bits_are_those_that_are_rounded_so(tmp_path: Path, form: str, dtype: str):
    directory = tiny.save(tmp_path, FORMS[form])
    found, name = logits(directory, PROMPT, quantization="int8", dtype=dtype)
    assert "int8 weights" in name
    weights = load_file(directory / "model.safetensors")
    for key, weight in weights.items():
        if weight.dim() == 2 and (FORMS[form].tie_word_embeddings or "embed" not in key):
            wide = weight.to(getattr(torch, dtype)).float()
            scales = wide.abs().amax(1, keepdim=True) / 127
            weights[key] = (wide / scales).round() * scales
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    rounded, _ = logits(directory, PROMPT)
    spread = (rounded - rounded.mean(-1, keepdim=True)).norm()
    assert (found - rounded).norm() / spread < (2e-3 if dtype == "float32" else 0.05)
    exact = tiny.truth(tiny.save(tmp_path / "exact", FORMS[form]), PROMPT)
    assert (found - exact).norm() / spread > 5e-3


def test_weights_in_8_bits_need_the_native_decoder(tmp_path: Path):
    directory = tiny.save(tmp_path, FORMS["biases"])
    with pytest.raises(ConfigError, match="quantization int8 needs the native decoder"):
        logits(directory, PROMPT, quantization="int8", attention_backend="native")


def test_kv_in_8_bits_needs_the_kernels(tmp_path: Path):
    directory = tiny.save(tmp_path, FORMS["tied embeddings"])
    with pytest.raises(ConfigError, match="kv_cache_dtype int8 needs the native kernels"):
        logits(directory, PROMPT, kv_cache_dtype="int8", attention_backend="reference")


def test_kv_in_8_bits_takes_half_the_memory():
    whole = native.geometry(FORMS["large heads"], torch.bfloat16)
    half = native.geometry(FORMS["large heads"], torch.bfloat16, "int8")
    assert whole.token_bytes == 4 * 2 * 2 * 128 * 2
    assert half.token_bytes == 4 * 2 * 2 * (128 + 4)


def test_dummy_weights_are_those_that_transformers_draws(tmp_path: Path):
    FORMS["tied embeddings"].save_pretrained(tmp_path)
    settings = {"load_format": "dummy", "seed": 3}
    found, name = logits(tmp_path, PROMPT, **settings)
    other, other_name = logits(tmp_path, PROMPT, **settings, attention_backend="reference")
    assert (name[:6], other_name[:12]) == ("native", "transformers")
    torch.testing.assert_close(found, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GemmaConfig(**SMALL), "gemma is none of"),
        (LlamaConfig(**{**SMALL, "hidden_act": "gelu"}), "MLP"),
        (LlamaConfig(**SMALL, mlp_bias=True), "MLP"),
        (LlamaConfig(**{**SMALL, "head_dim": 24}), "head size of 24"),
        (LlamaConfig(**{**SMALL, "hidden_size": 54}), "hidden size 54"),
        (LlamaConfig(**{**SMALL, "num_key_value_heads": 4}), "6 heads"),
        (LlamaConfig(**SMALL, quantization_config={"quant_method": "awq"}), "quantized"),
    ],
)
def test_what_it_cannot_run_it_leaves_to_transformers_with_a_reason(
    config: PreTrainedConfig, reason: str
):
    assert reason in str(native.unfit(config, torch.float32))


def test_half_precision_of_another_kind_is_left_to_transformers():
    assert "float16" in str(native.unfit(FORMS["biases"], torch.float16))
    assert native.unfit(FORMS["biases"], torch.bfloat16) is None


@pytest.mark.parametrize("change", ["missing", "odd"])
def test_weights_that_are_not_the_models_are_refused_as_ever(tmp_path: Path, change: str):
    directory = tiny.write(tmp_path)
    weights = load_file(directory / "model.safetensors")
    if change == "missing":
        del weights["model.layers.1.mlp.up_proj.weight"]
    else:
        weights["model.layers.1.mlp.up_proj.bias"] = torch.zeros(96)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj"):
        logits(directory, PROMPT)
