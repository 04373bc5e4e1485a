"""Each variant rounds what it says, and asking twice on one context asks the same."""

from __future__ import annotations

import pytest
import torch

from bench.kv_quality import Model, text
from radixserve.tokens import pack
from tests.model import tiny

TOKENS = [3 + i * i % 90 for i in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(str(tiny.speaking(tmp_path_factory.mktemp("tiny"))))


def test_what_is_fed_over_an_older_continuation_counts_alone(model: Model):
    fresh, used = (model.contexts(80)["KV in int8"] for _ in range(2))
    for context in (fresh, used):
        context.feed(pack(TOKENS[:40]), 0)
    used.feed(pack([9] * 20), 40)
    wanted = fresh.feed(pack(TOKENS[40:]), 40, slice(-3, None))
    assert wanted.shape[0] == 3
    assert torch.equal(used.feed(pack(TOKENS[40:]), 40, slice(-3, None)), wanted)


def test_chunks_give_the_distributions_of_the_whole(model: Model):
    whole, parts = (model.contexts(80)["exact"] for _ in range(2))
    wanted = whole.feed(pack(TOKENS), 0, slice(None))
    found = [parts.feed(pack(TOKENS[:25]), 0, slice(None)),
             parts.feed(pack(TOKENS[25:]), 25, slice(None))]  # fmt: skip
    torch.testing.assert_close(torch.cat(found), wanted, atol=1e-4, rtol=1e-4)


def test_more_rounding_is_further_from_the_exact_model(model: Model):
    shown = text(model, "What is round, is round. " * 20, 100)
    far = {name: each["divergence_mean"] for name, each in shown.items() if name != "tokens"}
    assert far["exact"] == 0.0
    assert 0 < far["keys in int8"] < far["keys in fp8_e4m3"] < far["KV in fp8_e4m3"]
    assert 0 < far["values in int8"] < far["values in fp8_e4m3"]
    assert far["weights in int8"] > 0
    assert far["bf16"] > 0
