"""Paged attention in any order and shape gives the logits of plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import EngineConfig
from radixserve.model.execution import _torch, executable
from radixserve.model.kv_storage import KvStorage
from radixserve.model.loader import describe
from radixserve.model.parallel import ALONE
from radixserve.model.survey import own_logits, self_check, survey
from radixserve.model.transformers_model import load
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny
from tests.model.paged import PROMPT, Paged

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(scope="module", params=list(tiny.FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> torch.Tensor:
    """Logits of plain transformers, [len(PROMPT), vocabulary]."""
    return tiny.truth(checkpoint, PROMPT)


@pytest.fixture(scope="module", params=["auto", "native", "reference", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1, 2, 16], ids=lambda size: f"page{size}")
def paged(request: pytest.FixtureRequest, checkpoint: Path, backend: str) -> Paged:
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        attention_backend="reference" if backend == "torch" else backend,
        page_size=request.param,
        threads=2,
    )
    described = describe(checkpoint, config)
    if backend != "torch":
        return Paged(executable(described, config), request.param)
    model = _torch(described, config, ALONE)  # what a GPU would run
    if model is None:
        pytest.skip("only transformers runs this model")
    return Paged(model, request.param)


@pytest.mark.parametrize("chunk", [len(PROMPT), 7, 1])
def test_a_prompt_in_chunks_of_any_size_gives_the_same_logits(
    paged: Paged, expected: torch.Tensor, chunk: int
):
    pages = paged.pages(len(PROMPT))
    parts = [
        paged.logits((PROMPT[start : start + chunk], start, pages))
        for start in range(0, len(PROMPT), chunk)
    ]
    torch.testing.assert_close(torch.cat(parts), expected, **CLOSE)


def test_sequences_in_one_batch_do_not_see_each_other(paged: Paged, expected: torch.Tensor):
    pages = [paged.pages(len(PROMPT)) for _ in range(3)]
    paged.logits((PROMPT[:17], 0, pages[0]), (PROMPT[:30], 0, pages[1]))
    mixed = paged.logits(
        (PROMPT[17:18], 17, pages[0]), (PROMPT[:9], 0, pages[2]), (PROMPT[30:], 30, pages[1])
    )
    rows = [17, *range(9), *range(30, len(PROMPT))]
    torch.testing.assert_close(mixed, expected[rows], **CLOSE)


def test_pages_of_one_prefix_serve_every_continuation(paged: Paged, expected: torch.Tensor):
    for cut in (1, 16, 23, len(PROMPT) - 1):
        whole = cut // paged.page_size
        prefix = paged.pages(whole * paged.page_size)
        start = whole * paged.page_size
        if start:
            paged.logits((PROMPT[:start], 0, prefix))
        for _ in range(2):
            pages = prefix + paged.pages(len(PROMPT) - start)
            rest = paged.logits((PROMPT[start:], start, pages))
            torch.testing.assert_close(rest, expected[start:], **CLOSE)


def test_only_the_sampled_rows_get_logits(paged: Paged, expected: torch.Tensor):
    first, second = paged.pages(10), paged.pages(10)
    rows = [
        Row("a", pack(PROMPT[:10]), 0, first),
        Row("b", pack(PROMPT[:10]), 0, second, SamplingParams()),
    ]
    logits = paged.run(paged_batch(StepPlan(1, rows), paged.page_size))
    torch.testing.assert_close(logits, expected[9:10], **CLOSE)
    none = paged_batch(StepPlan(1, rows[:1]), paged.page_size)
    assert paged.run(none).shape == (0, tiny.VOCABULARY)


def test_a_prefix_that_decoding_rows_share_is_read_once_and_changes_nothing(
    paged: Paged, expected: torch.Tensor
):
    if paged.page_size == 1:
        shared, start = paged.pages(40), 40
    else:
        start = 40 // paged.page_size * paged.page_size
        shared = paged.pages(start)
    paged.logits((PROMPT[:start], 0, shared))
    rows = [shared + paged.pages(len(PROMPT) - start) for _ in range(5)]
    for at in range(start, len(PROMPT)):
        logits = paged.logits(*((PROMPT[at : at + 1], at, pages) for pages in rows))
        for row in logits:
            torch.testing.assert_close(row, expected[at], **CLOSE)


def test_the_check_at_start_passes_what_is_right(checkpoint: Path):
    config = EngineConfig(dtype="float32", device="cpu")
    decoder = load(describe(checkpoint, config))
    geometry = survey(decoder, tiny.CONTEXT)
    backend = ReferenceAttention(KvStorage(geometry, 8, 4, decoder.device).kv)
    self_check(decoder, backend, own_logits(decoder, 256), 256)
