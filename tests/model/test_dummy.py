"""Random weights that are drawn where they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from radixserve.config import EngineConfig
from radixserve.model import execution, family
from radixserve.model.dummy import DummyTensors
from radixserve.model.loader import Description, describe
from radixserve.model.ops import TorchOps
from radixserve.model.torch_decoder import TorchDecoder
from tests.model import tiny

CPU = torch.device("cpu")
FORMS = tiny.forms(tiny.small(heads=4, inner=96))


def drawn(form: str = "plain", *, seed: int = 0) -> DummyTensors:
    return DummyTensors(FORMS[form], torch.float32, seed, CPU)


@pytest.mark.parametrize("form", FORMS)
def test_they_are_all_weights_of_the_model_in_their_shapes(form: str):
    config = FORMS[form]
    weights = drawn(form)
    assert family.complete(config, weights)
    expected = {name: tensor.shape for name, tensor in tiny.model(config).state_dict().items()}
    assert {name: weights[name].shape for name in weights}.items() <= expected.items()
    assert len(weights) == len(expected) - config.tie_word_embeddings
    TorchDecoder(config, torch.float32, weights, TorchOps(), device=CPU, max_model_len=64)


def test_norms_are_one_biases_are_zero_and_the_rest_is_as_wide_as_the_config_says():
    weights = drawn("biases")
    assert torch.equal(weights["model.norm.weight"], torch.ones(48))
    assert not weights["model.layers.0.self_attn.q_proj.bias"].any()
    table = weights["model.embed_tokens.weight"]
    assert table.std().item() == pytest.approx(FORMS["biases"].initializer_range, rel=0.05)
    assert abs(table.mean().item()) < 0.001


def test_a_weight_follows_from_its_name_and_the_seed_alone():
    up, down = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("up", "down"))
    first, second = drawn(), drawn()
    assert second[down].equal(second[down])
    assert first[up].equal(second[up])
    assert not first[up].equal(first["model.layers.2.mlp.up_proj.weight"])
    assert not first[up].equal(drawn(seed=1)[up])


@pytest.fixture
def described(tmp_path: Path) -> Description:
    """Of a config file, for a GPU that is not there: nothing touches it before a weight is read."""
    FORMS["plain"].save_pretrained(tmp_path)
    told = describe(tmp_path, EngineConfig(load_format="dummy", dtype="bfloat16", device="cpu"))
    return replace(told, device=torch.device("cuda"))


def test_on_a_gpu_dummy_weights_are_drawn_there(described: Description):
    tensors = execution._tensors(described)
    assert isinstance(tensors, DummyTensors)
    assert family.complete(described.config, tensors)
