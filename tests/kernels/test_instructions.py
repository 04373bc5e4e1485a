"""What the kernels compute does not depend on what the processor can do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixserve.attention import cpu
from radixserve.kernels.cpu.library import CpuKernels
from tests.attention.test_cpu import TOLERANCE, World
from tests.kernels.instructions import OLDER, made_for
from tests.model import tiny
from tests.model.test_native import FORMS, PROMPT, expected, logits


@pytest.fixture(autouse=True, params=OLDER)
def older(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuKernels:
    native = made_for(request.param)
    monkeypatch.setattr(cpu, "kernels", lambda: native)
    return native


def test_they_say_what_they_were_made_for(older: CpuKernels, request: pytest.FixtureRequest):
    wanted = {"avx2": ("avx2", "generic"), "sse2": ("generic",)}
    name = request.node.callspec.params["older"]
    assert older.features in wanted.get(name, ("avx512_bf16", "avx512", "avx2", "generic"))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("page_size", [4, 16])
def test_attention_is_the_reference(page_size: int, dtype: torch.dtype):
    for seed in range(3):
        world = World(page_size, dtype=dtype, seed=seed)
        world.tree([], 3)
        world.row([], 270, 65)
        world.check()


@pytest.mark.parametrize("dim", [16, 80])
def test_attention_with_a_soft_cap_is_the_reference(dim: int):
    world = World(16, dim=dim)
    for new in (1, 20):
        world.row([], 100, new)
    world.check(soft_cap=2.0)


@pytest.mark.parametrize("form", ["plain", "biases"])
def test_the_decoder_gives_the_logits_of_transformers(tmp_path: Path, form: str):
    directory = tiny.save(tmp_path, FORMS[form])
    found, name = logits(directory, PROMPT)
    assert name.startswith("native decoder")
    torch.testing.assert_close(found, expected(directory), atol=2e-4, rtol=2e-4)


def test_in_bf16_it_is_as_close_to_the_truth_as_transformers_is(tmp_path: Path):
    directory = tiny.save(tmp_path, FORMS["plain"])
    truth = expected(directory)
    found, _ = logits(directory, PROMPT, dtype="bfloat16")
    theirs = (expected(directory, torch.bfloat16) - truth).norm()
    assert (found - truth).norm() < 1.2 * theirs


@pytest.mark.parametrize("code", ["int8", "fp8_e4m3"])
def test_kv_in_8_bits_changes_little(tmp_path: Path, code: str):
    directory = tiny.save(tmp_path, FORMS["tied embeddings"])
    exact, _ = logits(directory, PROMPT)
    found, _ = logits(directory, PROMPT, kv_cache_dtype=code)
    spread = (exact - exact.mean(-1, keepdim=True)).norm()
    assert 0 < (found - exact).norm() / spread < (0.1 if code == "int8" else 0.3)
