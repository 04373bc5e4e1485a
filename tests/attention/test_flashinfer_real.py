"""The backend through FlashInfer's own wrappers; only their compiled kernels are replaced.

What the wrappers make of our arguments in Python, up to the arrays that a kernel is launched with,
is thus checked without a GPU.
"""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixserve.attention.reference import ReferenceAttention
from tests.attention.decoding import decoding_rows, step
from tests.attention.fake_device import FakeDevice
from tests.attention.fake_kernels import attend, merge
from tests.attention.flashinfer_world import FP8, Rounded, coded, flashinfer, world

KNOWN = ("0.6.13",)
"""Versions whose kernels take their arguments in this order."""
BOTH = ("workspace", "ints", "plan", "query", "key", "value")
PAGED = (*BOTH, "qo_indptr", "kv_indptr", "indices", "last", "out", "lse", "mask", "layout")
PAGED += ("window", "pdl", "custom", "mask_indptr", "alibi", "prefix", "items", "longest")
PAGED += ("soft_cap", "scale")
DECODE = (*BOTH, "kv_indptr", "indices", "last", "out", "lse", "layout", "window", "pdl", "alibi")
DECODE += ("soft_cap", "scale")


class Device(FakeDevice):
    def workspace(self, size: int) -> torch.Tensor:
        return torch.empty(16, dtype=torch.uint8)


def launch(names: tuple[str, ...], causal: Any, *values: Any) -> None:
    """A kernel: attention of what it is given, which reaches it under ``names``."""
    given = dict(zip(names, values, strict=False))
    layout, window = given["layout"], given["window"]
    assert (layout, window) == (0, -1)
    query = given["query"]
    qo_indptr = given.get("qo_indptr", torch.arange(len(query) + 1))
    lse = torch.empty(query.shape[:2]) if given["lse"] is None else given["lse"]
    attend(
        query,
        torch.stack([given["key"], given["value"]], 1),
        qo_indptr,
        given["kv_indptr"],
        given["indices"],
        given["last"],
        given.get("mask") == causal,
        given["scale"],
        given["soft_cap"],
        given["out"],
        lse,
    )


def append(*values: Any) -> None:
    key, value, rows, positions, keys, kept, indices, indptr, last, layout = values
    assert layout == 0
    assert (last == positions + 1).all()
    slot = (indices[indptr[rows]], positions)
    keys[slot], kept[slot] = key, value


def host_plan(*values: Any) -> list[int]:
    """FlashInfer plans in C++, from arrays in host memory."""
    for each in values[3:6]:
        if torch.is_tensor(each):
            assert (each.device.type, each.dtype) == ("cpu", torch.int32)
    return [0]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlashInfer with kernels that run on the CPU."""
    found = pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
    if found.__version__ not in KNOWN:
        pytest.skip(f"the kernels of flashinfer {found.__version__} may take other arguments")
    from flashinfer.utils import MaskMode

    def module(names: tuple[str, ...], *_: Any) -> Any:
        run = partial(launch, names, MaskMode.CAUSAL.value)
        return SimpleNamespace(plan=host_plan, run=run, paged_run=run)

    for place in (found.prefill, found.decode):
        monkeypatch.setattr(place, "get_batch_prefill_module", partial(module, PAGED))
        monkeypatch.setattr(place, "determine_attention_backend", lambda *_: "fa2")
    monkeypatch.setattr(found.decode, "get_batch_decode_module", partial(module, DECODE))
    pages = SimpleNamespace(append_paged_kv_cache=append)
    monkeypatch.setattr(found.page, "get_page_module", lambda: pages)
    merges = SimpleNamespace(merge_state_in_place=merge)
    monkeypatch.setattr(found.cascade, "get_cascade_module", lambda: merges)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: empty(*size, **how))
    return found


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("heads", [6, 8])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_steps_through_the_real_wrappers(
    library: Any, page_size: int, heads: int, soft_cap: float | None
):
    for chunk in (1, 25):
        each = world(page_size, heads=heads)
        each.tree([], 2)
        each.row([], 40, chunk)
        backend = flashinfer(each, Device(), library=library)
        expected, actual = each.attend([ReferenceAttention(each.empty()), backend], soft_cap)
        torch.testing.assert_close(actual, expected, atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize("heads", [6, 8])
def test_buckets_through_the_real_wrappers(library: Any, heads: int):
    device, each, chance = Device(), world(16, heads=heads), random.Random(3)
    kv = each.random(2, 60, 2, 16, each.kv_heads, each.dim)
    reference = ReferenceAttention(kv.clone())
    backend = flashinfer(each, device, library=library, kv=kv)
    factory = backend.buckets(5, 40)
    buckets = [factory(rows) for rows in (5, 2)] * 5
    for bucket in buckets:
        assert bucket._fixed is not None
        rows = bucket._fixed.rows
        batch = step(decoding_rows(chance, rows, page_size=16, pages=60, longest=100), 16)
        key, value = (each.random(rows, each.kv_heads, each.dim) for _ in range(2))
        query = each.random(rows, heads, each.dim)
        outputs = []
        for attention in (reference, bucket):
            attention.begin(batch)
            device.stream.finish()
            attention.append(1, key, value)
            outputs.append(attention.run(1, query, scale=0.125))
        torch.testing.assert_close(outputs[1], outputs[0], atol=3e-3, rtol=3e-3)
    assert torch.equal(kv, reference.kv)
    wrapper = buckets[0]._forms[0.125, None].decode
    assert wrapper.is_cuda_graph_enabled
    assert wrapper._paged_kv_indices_buf.data_ptr() == buckets[0]._fixed.arrays[15:].data_ptr()
    assert len(wrapper._int_workspace_buffer) == len(wrapper._pin_memory_int_workspace_buffer)


@pytest.mark.parametrize("chunk", [1, 25])
def test_kv_in_float8_through_the_real_wrappers(library: Any, chunk: int):
    scales = (0.125, 0.25)
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    each.row([], 40, chunk)
    backend = flashinfer(each, Device(), library=library, kv=coded(each), scales=[scales])
    rounded = Rounded(each.empty())
    rounded.used = scales
    expected, actual = each.attend([rounded, backend])
    assert backend.kv.dtype == FP8
    torch.testing.assert_close(actual, expected, atol=4e-3, rtol=4e-3)
