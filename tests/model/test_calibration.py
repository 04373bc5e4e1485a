"""Scales of FP8 are measured on a fixed set of prompts, once for the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from radixserve.config import EngineConfig
from radixserve.errors import ModelError
from radixserve.model import calibration, family, fp8_kv
from radixserve.model.kv_storage import Scales
from radixserve.model.loader import Description, describe
from radixserve.model.ops import TorchOps
from radixserve.model.parallel import ALONE, Parallel
from radixserve.model.torch_decoder import TorchDecoder, geometry
from tests.model import tiny
from tests.model.decoders import FORMS, Thread, in_ranks
from tests.text.tiny import tiny_tokenizer_dir

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes the cache folder of that name."""

    def take(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    monkeypatch.setattr(calibration, "PROMPTS", 3)
    take("cache")
    return take


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny.save(tmp_path / "model", FORMS["plain"])


def described(path: Path, **settings: Any) -> Description:
    return describe(path, EngineConfig(**{"device": "cpu", "dtype": "float32", **settings}))


def measured(told: Description, parallel: Parallel = ALONE) -> Scales:
    decoder = TorchDecoder(
        told.config,
        told.dtype,
        family.checkpoint(told.path),
        TorchOps(),
        device=CPU,
        max_model_len=told.max_model_len,
        parallel=parallel,
    )
    return fp8_kv.measured(told, decoder, geometry(told.config, told.dtype, parallel), parallel)


def close(one: Scales, other: Scales, tolerance: float = 1e-4) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(other), rtol=tolerance, atol=0)


def change(path: Path, **weights: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the weights whose names contain a key, dots written as two underscores."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    for part, changed in weights.items():
        for name in [each for each in tensors if part.replace("__", ".") in each]:
            tensors[name] = changed(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("form", ["plain", "norms of queries and keys", "biases"])
def test_twice_the_largest_key_and_value_of_each_layer_fit(tmp_path: Path, form: str):
    path = tiny.save(tmp_path / "model", FORMS[form])
    told = described(path)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    largest = torch.zeros(4, 2)
    for prompt in calibration.prompts(told):
        with torch.inference_mode():
            cache = theirs(torch.tensor([prompt]), use_cache=True).past_key_values
        for layer, each in enumerate(cache.layers):
            sizes = torch.stack([each.keys.abs().max(), each.values.abs().max()])
            largest[layer] = torch.maximum(largest[layer], sizes)
    found = torch.tensor(measured(told))
    torch.testing.assert_close(found * 448, 2 * largest, rtol=1e-3, atol=0)


def test_another_start_finds_what_was_measured(
    checkpoint: Path, cache: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    first = measured(described(checkpoint))
    cache("another")
    assert measured(described(checkpoint)) == first, "measuring again gives something else"
    cache("cache")
    monkeypatch.setattr(calibration, "largest", lambda *_, **__: pytest.fail("measured again"))
    assert measured(described(checkpoint)) == first


def test_what_was_measured_is_in_fp32_so_that_all_kernels_divide_by_the_same(checkpoint: Path):
    scales = measured(described(checkpoint))
    assert torch.tensor(scales).tolist() == [list(pair) for pair in scales]


OTHERS: dict[str, Callable[[Path], Description]] = {
    "dtype": lambda path: described(path, dtype="bfloat16"),
    "longest text": lambda path: described(path, max_model_len=60),
    "tokenizer": lambda path: replace(
        described(path), tokenizer=tiny_tokenizer_dir(path.parent / "tokenizer")
    ),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_dtype_length_or_tokenizer_is_measured_for_itself(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: Callable[[Path], Description],
):
    measured(described(checkpoint))
    measured(other(checkpoint))
    assert len(list(tmp_path.rglob("kv_scales/*.json"))) == 2


def test_other_weights_are_measured_for_themselves(checkpoint: Path):
    first = measured(described(checkpoint))
    change(checkpoint, k_proj=lambda weight: 3 * weight)
    second = measured(described(checkpoint))
    (key, value), (louder, same) = first[0], second[0]
    assert louder == pytest.approx(3 * key, rel=1e-4)
    assert same == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    "broken", ["", "{}", "[[1.0, 1.0]]", "[[0.0, 1.0], [1, 1], [1, 1], [1, 1]]"]
)
def test_a_file_that_is_broken_is_measured_again(checkpoint: Path, tmp_path: Path, broken: str):
    first = measured(described(checkpoint))
    (file,) = tmp_path.rglob("kv_scales/*.json")
    file.write_text(broken)
    assert measured(described(checkpoint)) == first
    assert file.read_text() != broken


def test_without_a_folder_to_keep_them_in_scales_are_measured_all_the_same(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "cache" / "radixserve").mkdir(parents=True)
    (tmp_path / "cache" / "radixserve" / "kv_scales").write_text("a file in its place")
    assert len(measured(described(checkpoint))) == 4
    assert "measured at each start" in caplog.text


def test_dummy_weights_are_measured_by_their_seed(checkpoint: Path, tmp_path: Path):
    names = [
        calibration.identity(described(checkpoint, load_format="dummy", seed=seed))
        for seed in (0, 0, 1)
    ]
    assert names[0] == names[1] != names[2]
    assert names[0] != calibration.identity(described(checkpoint))


def test_a_layer_that_keeps_nothing_gets_a_plain_scale(checkpoint: Path):
    change(checkpoint, layers__1__self_attn__v_proj=torch.zeros_like)
    scales = measured(described(checkpoint))
    assert scales[1][1] == 1.0
    assert 1.0 not in (scales[0][1], scales[1][0])


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e30])
def test_keys_that_fit_no_scale_are_refused(checkpoint: Path, wrong: float):
    change(checkpoint, layers__2__self_attn__k_proj=lambda weight: torch.full_like(weight, wrong))
    with pytest.raises(ModelError, match=r"of the keys of layer 2, is .* kv_cache_dtype at auto"):
        measured(described(checkpoint))


# Prompts


def test_prompts_are_of_the_help_that_comes_with_python(tmp_path: Path, checkpoint: Path):
    told = replace(described(checkpoint), tokenizer=tiny_tokenizer_dir(tmp_path / "tokenizer"))
    prompts = calibration.prompts(told)
    assert prompts == calibration.prompts(told)
    assert [len(prompt) for prompt in prompts] == [told.max_model_len] * 3
    assert len({tuple(prompt) for prompt in prompts}) == 3
    letters = "".join(chr(token - 3) for token in prompts[0] if 35 <= token < 130)
    assert "expression" in letters or "statement" in letters
    assert all(0 <= token < 250 for prompt in prompts for token in prompt)


def test_without_a_tokenizer_prompts_are_random_and_the_same_every_time(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
):
    told = described(checkpoint, max_model_len=40)
    prompts = calibration.prompts(told)
    assert "random tokens" in caplog.text
    assert prompts == calibration.prompts(told)
    assert [len(prompt) for prompt in prompts] == [40] * 3
    assert all(0 <= token < 250 for prompt in prompts for token in prompt)


# Ranks


@dataclass(frozen=True)
class Rank(Thread):
    def smallest(self, value: int) -> int:
        return int(min(self.exchanged(torch.tensor(value))))

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.exchanged(values)).amax(0)


def together(told: Description, size: int) -> list[Scales | Exception]:
    def compute(rank: Rank) -> Scales | Exception:
        try:
            return measured(told, rank)
        except ModelError as error:
            return error

    return in_ranks(size, compute, Rank)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_agree_on_the_largest_that_any_of_them_has(checkpoint: Path, size: int):
    # The heads of one rank alone are loud: 16 rows of each weight are the first KV head's.
    loud = torch.cat([torch.full((16, 1), 5.0), torch.ones(16, 1)])
    change(checkpoint, k_proj=lambda weight: weight * loud, v_proj=lambda weight: weight * loud)
    alone = measured(described(checkpoint))
    scales = together(described(checkpoint), size)
    assert all(each == scales[0] for each in scales)
    assert not isinstance(scales[0], Exception)
    assert close(scales[0], alone, 1e-3)
    assert together(described(checkpoint), size) == scales


def test_a_rank_that_finds_no_numbers_ends_them_all_for_the_same_reason(checkpoint: Path):
    def spoilt(weight: torch.Tensor) -> torch.Tensor:
        weight[16:] = torch.nan  # the second KV head's
        return weight

    change(checkpoint, layers__3__self_attn__v_proj=spoilt)
    first, second = together(described(checkpoint), 2)
    assert isinstance(first, ModelError)
    assert str(first) == str(second)
    assert "of the values of layer 3, is inf" in str(first)


def test_ranks_that_do_not_all_find_the_file_measure_together(checkpoint: Path, monkeypatch: Any):
    first = together(described(checkpoint), 2)
    recalled, asked = fp8_kv.recalled, []

    def half(*arguments: Any) -> Any:
        asked.append(1)
        return recalled(*arguments) if len(asked) % 2 else None

    monkeypatch.setattr(fp8_kv, "recalled", half)
    assert together(described(checkpoint), 2) == first
