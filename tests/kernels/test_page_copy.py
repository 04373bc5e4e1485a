"""Heads of pages are copied in all layers, in order."""

from __future__ import annotations

import pytest
import torch
from radixserve.kernels.page_copy import copy_pages

PAGE = 4


@pytest.fixture
def kv() -> torch.Tensor:
    return torch.arange(2 * 5 * 2 * PAGE * 1 * 3, dtype=torch.float32).view(2, 5, 2, PAGE, 1, 3)


@pytest.mark.parametrize("tokens", [1, 3, PAGE])
def test_only_the_first_tokens_of_the_target_change(kv: torch.Tensor, tokens: int):
    before = kv.clone()
    copy_pages(kv, [(3, 1, tokens)])
    assert torch.equal(kv[:, 1, :, :tokens], before[:, 3, :, :tokens])
    assert torch.equal(kv[:, 1, :, tokens:], before[:, 1, :, tokens:])
    others = [0, 2, 3, 4]
    assert torch.equal(kv[:, others], before[:, others])


def test_a_copy_may_read_what_an_earlier_one_wrote(kv: torch.Tensor):
    before = kv.clone()
    copy_pages(kv, [(3, 1, PAGE), (1, 2, 2)])
    assert torch.equal(kv[:, 2, :, :2], before[:, 3, :, :2])


def test_bits_that_are_no_number_are_copied_as_they_are(kv: torch.Tensor):
    kv[:, 3, :, 1] = torch.nan
    copy_pages(kv, [(3, 1, 2)])
    assert kv[:, 1, :, 1].isnan().all()
    assert not kv[:, 1, :, 0].isnan().any()


def test_a_page_that_does_not_exist_is_an_error(kv: torch.Tensor):
    with pytest.raises(IndexError):
        copy_pages(kv, [(3, 5, 1)])
