"""FP8 keys and values of the decoder in torch: near to plain ones, warm as cold, or refused."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from radixserve.attention import flashinfer
from radixserve.attention.arrays import paged_batch
from radixserve.attention.cpu import kernels
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.model import calibration, execution, family, fp8_kv
from radixserve.model.kv_storage import KvStorage
from radixserve.model.loader import describe
from radixserve.model.parallel import ALONE
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.attention.fake_device import FakeDevice
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.model import tiny
from tests.model.decoders import FORMS, PROMPT

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LAYERS = 4
OTHER = [(31 * i * i + 7 * i + 11) % 250 for i in range(70)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "PROMPTS", 2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"), FORMS["large heads"])


@pytest.fixture(params=["FlashInfer", "reference"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes it: what does on a GPU, over the stand-in for FlashInfer; or the reference."""
    if request.param == "FlashInfer":
        device, on_gpu = FakeDevice(), execution._attention
        monkeypatch.setattr(flashinfer, "CudaDevice", lambda _: device)
        monkeypatch.setattr(flashinfer, "_flashinfer", lambda: FakeFlashInfer(device))
        monkeypatch.setattr(
            flashinfer.FlashInferAttention,
            "calibrate",
            lambda made: setattr(made, "cost", flashinfer.ALWAYS),
        )
        monkeypatch.setattr(
            execution,
            "_attention",
            lambda described, config: on_gpu(replace(described, device=CUDA), config),
        )
    return str(request.param)


def settings(**changed: Any) -> EngineConfig:
    chosen = {"device": "cpu", "dtype": "bfloat16", "kv_cache_dtype": "fp8", "threads": 1}
    return EngineConfig(**{**chosen, **changed})


def made(path: Path, **changed: Any) -> execution.Executable:
    """The decoder in torch, which serves on GPUs, on this CPU."""
    config = settings(**changed)
    model = execution._torch(describe(path, config), config, ALONE)
    assert model is not None
    return model


class Served:
    """A model over a pool in which nothing is a number."""

    def __init__(self, model: execution.Executable):
        self.kv = KvStorage(model.geometry, 40, 16, CPU).kv
        self.kv.view(torch.uint8).fill_(0xFF)
        self._logits = model.on(self.kv)

    def step(self, *rows: tuple[list[int], int, list[int]]) -> torch.Tensor:
        """Logits of all tokens of rows: tokens, the position of the first, pages."""
        made = [
            Row(str(index), pack(tokens), start, array("i", pages), SamplingParams())
            for index, (tokens, start, pages) in enumerate(rows)
        ]
        batch = paged_batch(StepPlan(1, made), 16)
        batch.sample_rows = torch.arange(len(batch.token_ids))
        return self._logits(batch).float()


PAGES = [7, 3, 11, 1, 15]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of logits, relative to how far they spread."""
    spread = (other - other.mean(-1, keepdim=True)).norm()
    return float((one - other).norm() / spread)


def test_logits_are_near_those_of_plain_kv(checkpoint: Path, attention: str):
    plain, coded = (
        Served(made(checkpoint, kv_cache_dtype=kind)).step((PROMPT, 0, PAGES))
        for kind in ("auto", "fp8")
    )
    # Random weights, whose attention is sharp, magnify what is lost.
    assert 0.01 < distance(coded, plain) < 0.3


def test_scales_that_are_too_small_are_not_near(checkpoint: Path, attention: str):
    model = made(checkpoint)
    plain = Served(made(checkpoint, kv_cache_dtype="auto")).step((PROMPT, 0, PAGES))
    model.geometry = replace(
        model.geometry, scales=tuple((k / 16, v / 16) for k, v in model.geometry.scales or ())
    )
    assert distance(Served(model).step((PROMPT, 0, PAGES)), plain) > 0.3


def test_kv_that_another_request_left_gives_the_very_same_logits(checkpoint: Path, attention: str):
    model = made(checkpoint)
    cold = Served(model)
    cold.step((PROMPT[:48], 0, PAGES))
    expected = [cold.step((PROMPT[48:], 48, PAGES))]
    expected.append(cold.step(([9], 70, PAGES), ([8], 48, [*PAGES[:3], 16])))
    warm = Served(model)
    warm.step((OTHER, 0, [20, 21, 22, 23, 24]))  # what was served before leaves no trace
    warm.step((PROMPT[:48], 0, [2, 4, 6]))
    mine = [2, 4, 6, 30, 31]
    found = [warm.step((PROMPT[48:], 48, mine))]
    found.append(warm.step(([9], 70, mine), ([8], 48, [*mine[:3], 32])))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_chunk_reads_its_own_kv_as_those_who_come_later_do(checkpoint: Path):
    """In fp32, where a chunk's size is not seen in the products: only the codes are coarse."""
    model = made(checkpoint, dtype="float32")
    whole = Served(model).step((PROMPT, 0, PAGES))
    chunked = Served(model)
    parts = [chunked.step((PROMPT[at : at + 10], at, PAGES)) for at in range(0, 70, 10)]
    plain = Served(made(checkpoint, dtype="float32", kv_cache_dtype="auto"))
    lost = distance(whole, plain.step((PROMPT, 0, PAGES)))
    assert distance(torch.cat(parts), whole) < lost / 10


def test_pages_are_float8_and_take_half_the_memory(checkpoint: Path):
    coded, plain = made(checkpoint).geometry, made(checkpoint, kv_cache_dtype="auto").geometry
    assert coded.token_bytes == plain.token_bytes / 2 == LAYERS * 2 * 2 * 128
    assert coded.format != plain.format
    assert Served(made(checkpoint, kv_cache_dtype="fp8_e4m3")).kv.dtype == torch.float8_e4m3fn


# Scales that the checkpoint has


def scaled(path: Path, target: Path, scales: dict[str, torch.Tensor]) -> Path:
    """The checkpoint with scales besides, whose names begin behind ``self_attn.`` of a layer."""
    target.mkdir()
    (target / "config.json").write_bytes((path / "config.json").read_bytes())
    named = {f"model.layers.{name}": scale for name, scale in scales.items()}
    tensors = load_file(path / "model.safetensors") | named
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def everywhere(key: str, value: str, form: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """A scale of each layer, all of them different."""
    scales = {}
    for layer in range(LAYERS):
        scales[f"{layer}.self_attn.{key}"] = torch.full(form, 0.25 + layer)
        scales[f"{layer}.self_attn.{value}"] = torch.full(form, 0.125 + layer)
    return scales


NAMES = {
    "compressed-tensors": ("k_scale", "v_scale"),
    "vLLM": ("attn.k_scale", "attn.v_scale"),
    "ModelOpt": ("k_proj.k_scale", "v_proj.v_scale"),
    "AutoFP8 and Quark": ("k_proj.output_scale", "v_proj.output_scale"),
}
WRITTEN = tuple((0.25 + layer, 0.125 + layer) for layer in range(LAYERS))


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("form", [(), (1,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scales_are_read_by_each_of_their_names(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, str],
    form: tuple[int, ...],
    dtype: torch.dtype,
):
    monkeypatch.setattr(calibration, "largest", lambda *_, **__: pytest.fail("measured"))
    scales = {name: scale.to(dtype) for name, scale in everywhere(*names, form).items()}
    scales |= {f"{layer}.self_attn.q_scale": torch.ones(3) for layer in range(LAYERS)}
    assert made(scaled(checkpoint, tmp_path / "m", scales)).geometry.scales == WRITTEN


def test_one_scale_may_be_for_keys_and_values(checkpoint: Path, tmp_path: Path):
    scales = {f"{layer}.self_attn.kv_scale": torch.tensor(0.5 + layer) for layer in range(LAYERS)}
    found = made(scaled(checkpoint, tmp_path / "m", scales)).geometry.scales
    assert found == tuple((0.5 + layer, 0.5 + layer) for layer in range(LAYERS))


def test_scales_of_queries_alone_are_none_of_kv(checkpoint: Path, tmp_path: Path):
    scales = {f"{layer}.self_attn.q_scale": torch.tensor(0.5) for layer in range(LAYERS)}
    found = made(scaled(checkpoint, tmp_path / "m", scales)).geometry.scales
    assert found == made(checkpoint).geometry.scales


def test_pages_of_plain_kv_leave_the_scales_alone(checkpoint: Path, tmp_path: Path):
    path = scaled(checkpoint, tmp_path / "m", everywhere("k_scale", "v_scale"))
    found = made(path, kv_cache_dtype="auto")
    assert found.geometry.scales is None
    expected = Served(made(checkpoint, kv_cache_dtype="auto")).step((PROMPT, 0, PAGES))
    assert torch.equal(Served(found).step((PROMPT, 0, PAGES)), expected)


@pytest.mark.skipif(kernels() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("kind", ["auto", "fp8"])
def test_on_a_cpu_a_token_and_head_has_its_own_scale_whatever_the_checkpoint_says(
    checkpoint: Path, tmp_path: Path, kind: str
):
    path = scaled(checkpoint, tmp_path / "m", everywhere("k_scale", "v_scale"))
    config = settings(kv_cache_dtype=kind)
    with_scales, without = (
        execution.executable(describe(each, config), config) for each in (path, checkpoint)
    )
    assert with_scales.name.startswith("native decoder")
    assert with_scales.geometry == without.geometry
    assert with_scales.geometry.code == ("none" if kind == "auto" else "fp8_e4m3")


def of_layer_2(scale: float) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda scales: scales.update({"2.self_attn.v_scale": torch.tensor(scale)})


WRONG: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "zero": (of_layer_2(0.0), "values of layer 2, is 0, which is not between"),
    "negative": (of_layer_2(-0.5), "values of layer 2, is -0.5, which is not between"),
    "no number": (of_layer_2(math.nan), "values of layer 2, is nan, which is not between"),
    "infinite": (of_layer_2(math.inf), "values of layer 2, is inf, which is not between"),
    "absurdly small": (of_layer_2(1e-9), "values of layer 2, is 1e-09, which is not between"),
    "absurdly large": (of_layer_2(1e6), r"values of layer 2, is 1e\+06, which is not between"),
    "missing": (
        lambda scales: scales.pop("3.self_attn.k_scale"),
        "of the keys of layer 3, is not there, but of others it is",
    ),
    "contradicted": (
        lambda scales: scales.update({"1.self_attn.k_proj.output_scale": torch.tensor(9.0)}),
        "of the keys of layer 1, differs between its names",
    ),
    "one for each head": (
        lambda scales: scales.update({"0.self_attn.k_scale": torch.ones(2, 1, 1)}),
        r"is not one number but \[2, 1, 1\]",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_scales_that_cannot_be_used_are_refused_before_the_weights_are_read(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, torch.Tensor]], Any],
    message: str,
):
    scales = everywhere("k_scale", "v_scale")
    change(scales)
    path = scaled(checkpoint, tmp_path / "m", scales)
    monkeypatch.setattr(
        execution.torch_decoder, "TorchDecoder", lambda *_, **__: pytest.fail("read")
    )
    with pytest.raises(ModelError, match=message) as caught:
        made(path)
    assert "Leave kv_cache_dtype at auto, or take all such scales out" in str(caught.value)


# What the config says of the checkpoint

KV_ONLY = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
}


def told(path: Path, quantization: dict[str, Any]) -> None:
    file = path / "config.json"
    content = json.loads(file.read_text()) | {"quantization_config": quantization}
    file.write_text(json.dumps(content))


def test_a_checkpoint_of_which_only_kv_is_quantized_is_served(checkpoint: Path, tmp_path: Path):
    path = scaled(checkpoint, tmp_path / "m", everywhere("k_scale", "v_scale"))
    told(path, KV_ONLY)
    assert made(path).geometry.scales == WRITTEN


def test_scales_of_integers_are_refused(checkpoint: Path, tmp_path: Path):
    path = scaled(checkpoint, tmp_path / "m", everywhere("k_scale", "v_scale"))
    told(path, KV_ONLY | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}})
    with pytest.raises(ModelError, match="for KV of 8 bits of type int"):
        made(path)


@pytest.mark.parametrize(
    "changed",
    [{"config_groups": {"group_0": {}}}, {"quant_algo": "FP8"}, {"kv_cache_scheme": None}],
    ids=str,
)
def test_quantized_weights_are_not_served_by_this_decoder(
    checkpoint: Path, tmp_path: Path, changed: dict[str, Any]
):
    path = scaled(checkpoint, tmp_path / "m", {})
    told(path, KV_ONLY | changed)
    assert family.unfit(AutoConfig.from_pretrained(path)) == "its weights are quantized"


# Refused on a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Starts there, as far as what is refused before anything of a model is read."""
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setattr(family, "checkpoint", lambda *_: pytest.fail("read"))

    def start(path: Path, **changed: Any) -> None:
        config = settings(**changed)
        there = replace(describe(path, config), device=CUDA)
        execution.executable(there, config)

    return start


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "int8": ({"kv_cache_dtype": "int8"}, "int8 is for CPUs: on a GPU take fp8"),
    "another backend": (
        {"attention_backend": "reference"},
        "needs attention_backend auto, not reference: set that",
    ),
    "fp32": ({"dtype": "float32"}, "no kernels for float32: set dtype bfloat16"),
}


@pytest.mark.parametrize(("changed", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_nothing_on_a_gpu_reads_is_refused_before_anything_is_loaded(
    checkpoint: Path, gpu: Callable[..., None], changed: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message) as caught:
        gpu(checkpoint, **changed)
    assert "leave it at auto" in str(caught.value)


def test_a_model_that_only_transformers_runs_is_refused(tmp_path: Path, gpu: Callable[..., None]):
    tiny.write(tmp_path, "gpt2")
    with pytest.raises(ConfigError, match=r"decoder, which does not run this model \(gpt2 is none"):
        gpu(tmp_path)


def test_without_flashinfer_it_is_refused(
    checkpoint: Path, gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ConfigError, match=r"cannot be imported .* install radixserve\[gpu\]"):
        gpu(checkpoint)


def test_with_all_of_it_nothing_is_refused(checkpoint: Path, gpu: Callable[..., None]):
    config = settings()
    there = replace(describe(checkpoint, config), device=CUDA)
    fp8_kv.check_gpu(there, config)


@pytest.mark.parametrize("changed", [{"kv_cache_dtype": "int8"}, {"quantization": "int8"}], ids=str)
def test_ranks_have_no_int8(checkpoint: Path, changed: dict[str, str]):
    with pytest.raises(ConfigError, match="int8 needs the native kernels of a CPU and one rank"):
        made(checkpoint, **changed)
