"""The small operations of a layer: what they compute, and that FlashInfer takes our calls."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from radixserve.model.ops import FlashInferOps, TorchOps

OPS = TorchOps()


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_norms_are_those_of_torch():
    x, weight = noise(5, 3, 16), noise(16)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), expected)


def test_the_sum_with_the_residual_stays_in_its_memory():
    x, residual, weight = noise(5, 16), noise(4, 16)[:1].expand(5, 16).clone(), noise(16)
    expected = x + residual
    normed = OPS.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(normed, OPS.rms_norm(expected, weight, 1e-5))


def test_heads_turn_in_place_by_the_angle_of_their_position():
    angles = torch.arange(10)[:, None] * torch.tensor([1.0, 0.1, 0.01])
    rotations = torch.cat([angles.cos(), angles.sin()], -1)
    qkv = noise(4, 5, 6)
    before = qkv.clone()
    positions = torch.tensor([3, 0, 9, 3])
    OPS.rotate(positions, qkv[:, :3], qkv[:, 3:4], rotations)
    turns = torch.polar(torch.ones(4, 1, 3), angles[positions][:, None])
    turned = torch.complex(before[..., :3], before[..., 3:]) * turns
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(qkv[:, :4], expected[:, :4])
    assert torch.equal(qkv[:, 4], before[:, 4])


def test_the_first_half_is_the_gate_of_the_second():
    x = noise(4, 12)
    expected = torch.nn.functional.silu(x[:, :6]) * x[:, 6:]
    torch.testing.assert_close(OPS.silu_and_mul(x), expected)


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "silu_and_mul"])
def test_half_precision_is_rounded_once(name: str):
    operands = {
        "rms_norm": (noise(5, 16), noise(16), 1e-5),
        "add_rms_norm": (torch.zeros(5, 16), noise(5, 16), noise(16), 1e-5),
        "silu_and_mul": (noise(5, 16),),
    }[name]
    half = [each.bfloat16() if isinstance(each, torch.Tensor) else each for each in operands]
    wide = [each.float() if isinstance(each, torch.Tensor) else each for each in half]
    assert torch.equal(getattr(OPS, name)(*half), getattr(OPS, name)(*wide).bfloat16())


class Recorder:
    """A module of flashinfer whose functions are bound to their arguments, not run."""

    def __init__(self, module: Any, calls: dict[str, dict[str, Any]]):
        self._module, self._calls = module, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        signature = inspect.signature(getattr(self._module, name))

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls[name] = dict(signature.bind(*arguments, **named).arguments)
            return arguments[0] if arguments else None

        return call


@pytest.fixture
def recorded() -> tuple[FlashInferOps, dict[str, dict[str, Any]]]:
    pytest.importorskip("flashinfer", reason="flashinfer is not installed")
    calls: dict[str, dict[str, Any]] = {}
    ops = FlashInferOps()
    for attribute, module in (("_norm", "norm"), ("_rope", "rope"), ("_activation", "activation")):
        real = importlib.import_module(f"flashinfer.{module}")
        setattr(ops, attribute, Recorder(real, calls))
    return ops, calls


def test_flashinfer_takes_the_calls_that_we_make(
    recorded: tuple[FlashInferOps, dict[str, dict[str, Any]]],
):
    ops, calls = recorded
    x, residual, weight = noise(5, 16), noise(5, 16), noise(16)
    ops.rms_norm(x, weight, 1e-5)
    ops.add_rms_norm(x, residual, weight, 1e-6)
    ops.silu_and_mul(x)
    qkv, rotations, positions = noise(5, 4, 16), noise(9, 16), torch.arange(5)
    ops.rotate(positions, qkv[:, :2], qkv[:, 2:3], rotations)
    assert calls["rmsnorm"]["eps"] == 1e-5
    assert calls["fused_add_rmsnorm"]["residual"] is residual
    assert calls["silu_and_mul"]["input"] is x
    turned = calls["apply_rope_with_cos_sin_cache_inplace"]
    assert turned["query"].shape == (5, 32)
    assert turned["key"].data_ptr() == qkv[:, 2].data_ptr()
    assert (turned["head_size"], turned["is_neox"]) == (16, True)
