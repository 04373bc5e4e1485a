"""Pages are copied in all layers, in order."""

from __future__ import annotations

import pytest
import torch

from radixserve.kernels.page_copy import copy_pages

PAGE = 4


@pytest.fixture
def kv() -> torch.Tensor:
    return torch.arange(2 * 5 * 2 * PAGE * 1 * 3, dtype=torch.float32).view(2, 5, 2, PAGE, 1, 3)


def test_nothing_but_the_target_changes(kv: torch.Tensor):
    before = kv.clone()
    copy_pages(kv, [(3, 1)])
    assert torch.equal(kv[:, 1], before[:, 3])
    others = [0, 2, 3, 4]
    assert torch.equal(kv[:, others], before[:, others])


def test_a_copy_may_read_what_an_earlier_one_wrote(kv: torch.Tensor):
    before = kv.clone()
    copy_pages(kv, [(3, 1), (1, 2)])
    assert torch.equal(kv[:, 2], before[:, 3])


def test_bits_that_are_no_number_are_copied_as_they_are(kv: torch.Tensor):
    kv[:, 3, :, 1] = torch.nan
    copy_pages(kv, [(3, 1)])
    assert kv[:, 1, :, 1].isnan().all()
    assert not kv[:, 1, :, 0].isnan().any()


@pytest.mark.parametrize("wrong", [(3, 5), (-1, 1), (5, 3), (2, -1)])
def test_a_page_that_does_not_exist_is_an_error_before_anything_is_copied(
    kv: torch.Tensor, wrong: tuple[int, int]
):
    before = kv.clone()
    with pytest.raises(IndexError, match="does not exist"):
        copy_pages(kv, [(3, 1), wrong])
    assert torch.equal(kv, before)
