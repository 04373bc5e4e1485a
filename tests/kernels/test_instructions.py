"""What attention gives does not depend on what the processor can do."""

from __future__ import annotations

import pytest
import torch

from radixserve.attention import cpu
from radixserve.kernels.cpu.library import CpuKernels
from tests.attention.world import TOLERANCE, World
from tests.kernels.instructions import OLDER, made_for


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
