"""Weights in FP8 are what one gets by multiplying them with their scales by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig

from radixserve.attention.cpu import kernels
from radixserve.config import EngineConfig
from radixserve.errors import ModelError
from radixserve.model import family, fp8_weights
from radixserve.model.execution import _torch, executable
from radixserve.model.loader import describe
from radixserve.model.parallel import ALONE
from tests.model import tiny
from tests.model.paged import PROMPT, Paged

FP8 = torch.float8_e4m3fn
BLOCK = (40, 24)  # which divides no size of the model


def by_tensor(weight: torch.Tensor) -> torch.Tensor:
    return (weight.abs().max() / 448).reshape(1)


def by_row(weight: torch.Tensor) -> torch.Tensor:
    return weight.abs().amax(1, keepdim=True) / 448


def by_block(weight: torch.Tensor) -> torch.Tensor:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.abs(), (0, -columns % BLOCK[1], 0, -rows % BLOCK[0]))
    tiles = padded.unflatten(1, (-1, BLOCK[1])).unflatten(0, (-1, BLOCK[0]))
    return tiles.amax((1, 3)) / 448


def spread(scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``scale``, an element for each of ``weight``."""
    if scale.numel() == 1 or scale.shape[1] == 1:
        return scale.expand(weight.shape)
    rows, columns = weight.shape
    wide = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return wide[:rows, :columns]


def group(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float"} | weights,
            }
        },
    }


Kind = tuple[Callable[[torch.Tensor], torch.Tensor], str, dict[str, Any]]
KINDS: dict[str, Kind] = {
    "compressed-tensors, a tensor": (by_tensor, "weight_scale", group(strategy="tensor")),
    "compressed-tensors, a channel": (by_row, "weight_scale", group(strategy="channel")),
    "compressed-tensors, blocks": (
        by_block, "weight_scale", group(strategy="block", block_structure=list(BLOCK)),
    ),
    "compressed-tensors, blocks as they were written once": (
        by_block, "weight_scale", group(strategy="block", block_structure="40x24"),
    ),
    "DeepSeek": (
        by_block, "weight_scale_inv", {"quant_method": "fp8", "weight_block_size": list(BLOCK)},
    ),
    "AutoFP8": (
        by_tensor, "weight_scale", {"quant_method": "fp8", "activation_scheme": "static"},
    ),
    "ModelOpt": (
        lambda weight: by_tensor(weight)[0], "weight_scale",
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("plain"))


def coded(plain: Path, directory: Path, kind: Kind) -> tuple[Path, Path]:
    """``plain`` in FP8, and a plain checkpoint of what that stands for."""
    scale_of, name, told = kind
    tensors, stands_for = load_file(plain / "model.safetensors"), {}
    kept: dict[str, torch.Tensor] = {}
    for full, weight in tensors.items():
        if "_proj" not in full:
            kept[full] = stands_for[full] = weight
            continue
        scale = scale_of(weight)
        kept[full] = (weight / spread(scale, weight)).to(FP8)
        kept[full.replace("weight", name)] = scale
        kept[full.replace("weight", "input_scale")] = torch.tensor(7.0)
        stands_for[full] = kept[full].float() * spread(scale, weight)
    paths = directory / "fp8", directory / "by hand"
    content = json.loads((plain / "config.json").read_text())
    for path, those, more in (
        (paths[0], kept, {"quantization_config": told}),
        (paths[1], stands_for, {}),
    ):
        path.mkdir()
        save_file(those, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(content | more))
    return paths


def config(**settings: Any) -> EngineConfig:
    chosen = {"dtype": "float32", "device": "cpu", "threads": 1, "page_size": 4}
    return EngineConfig(**{**chosen, **settings})


def weights(path: Path) -> family.Tensors:
    return family.checkpoint(path, AutoConfig.from_pretrained(path))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_weight_is_the_product_with_its_scale_whatever_part_of_it_is_read(
    plain: Path, tmp_path: Path, kind: Kind
):
    quantized, by_hand = coded(plain, tmp_path, kind)
    found, expected = weights(quantized), load_file(by_hand / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name][:], weight)
        if weight.dim() == 2:
            for part in (slice(5, 47), slice(33, None), slice(0, 0)):
                assert torch.equal(found[name][part], weight[part])
                assert torch.equal(found[name][:, part], weight[:, part])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "decoder",
    [
        "torch",
        pytest.param(
            "native",
            marks=pytest.mark.skipif(kernels() is None, reason="there is no C++ compiler"),
        ),
    ],
)
def test_logits_are_those_of_the_plain_checkpoint(
    plain: Path, tmp_path: Path, kind: Kind, decoder: str
):
    found = []
    for path in coded(plain, tmp_path, kind):
        described, chosen = describe(path, config()), config()
        model = (
            _torch(described, chosen, ALONE)
            if decoder == "torch"
            else executable(described, chosen)
        )
        assert model is not None
        assert model.name.startswith(decoder)
        paged = Paged(model, 4)
        found.append(paged.logits((PROMPT, 0, paged.pages(len(PROMPT)))))
    assert torch.equal(*found)


def test_scales_of_kv_are_found_beside_those_of_weights(plain: Path, tmp_path: Path):
    path, _ = coded(plain, tmp_path, KINDS["compressed-tensors, a tensor"])
    tensors = load_file(path / "model.safetensors")
    for layer in range(3):
        for which in "kv":
            tensors[f"model.layers.{layer}.self_attn.{which}_scale"] = torch.tensor([0.25])
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    chosen = config(kv_cache_dtype="fp8")
    model = _torch(describe(path, chosen), chosen, ALONE)
    assert model is not None
    assert model.geometry.scales == ((0.25, 0.25),) * 3


def damaged(plain: Path, directory: Path, kind: str, **changed: torch.Tensor | None) -> Path:
    path, _ = coded(plain, directory, KINDS[kind])
    tensors = load_file(path / "model.safetensors")
    for name, value in changed.items():
        full = f"model.layers.1.mlp.up_proj.{name}"
        del tensors[full]
        if value is not None:
            tensors[full] = value
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("DeepSeek", {"weight_scale_inv": None}, "up_proj.weight, in F8_E4M3, has no scale"),
        ("DeepSeek", {"weight_scale_inv": torch.ones(4, 3)}, r"up_proj.weight is \[4, 3\]"),
        ("ModelOpt", {"weight_scale": torch.ones(95, 1)}, r"\[95, 1\], .* not go with \[96, 64\]"),
        ("AutoFP8", {"weight": torch.ones(96, 64).to(torch.float8_e5m2)}, "in F8_E5M2, has no"),
    ],
)
def test_scales_that_are_missing_or_do_not_fit_are_refused(
    plain: Path, tmp_path: Path, kind: str, changed: dict[str, Any], message: str
):
    path = damaged(plain, tmp_path, kind, **changed)
    with pytest.raises(ModelError, match=message):
        executable(describe(path, config()), config())


@pytest.mark.parametrize(
    "told",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "fp8", "fmt": "e5m2"},
        {"quant_method": "compressed-tensors"},
        group(strategy="group"),
        group(strategy="channel", type="int"),
        group(strategy="channel", num_bits=4),
    ],
    ids=str,
)
def test_weights_in_anything_else_are_not_taken_for_fp8(told: dict[str, Any]):
    quantized = LlamaConfig(**tiny.small(heads=4, inner=96), quantization_config=told)
    assert not fp8_weights.readable(quantized)
    assert family.unfit(quantized) == "its weights are quantized"


def test_what_our_decoders_do_not_run_is_refused_with_what_does(plain: Path, tmp_path: Path):
    path, _ = coded(plain, tmp_path, KINDS["DeepSeek"])
    chosen = config(attention_backend="reference")
    with pytest.raises(ModelError, match=r"FP8.*attention_backend auto.*bfloat16"):
        executable(describe(path, chosen), chosen)
