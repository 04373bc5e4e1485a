"""Attention at fixed addresses, as graphs need it: the right numbers, and nothing ever moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch

from radixserve.attention import flashinfer as module
from radixserve.attention.arrays import PagedBatch
from radixserve.attention.flashinfer import FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.model.cuda_graphs import buckets, pad
from tests.attention.decoding import decoding_rows, step
from tests.attention.fake_device import FakeDevice, RaceError
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.fake_kernels import tiles_bytes
from tests.attention.flashinfer_world import DECODE, FP8, NEVER, Rounded, flashinfer, world

LARGEST, LONGEST, PAGES = 11, 70, 60
DIM, LAYER = 64, 1
NEAR = {"atol": 3e-3, "rtol": 3e-3}


class Pool:
    """Attention in buckets over random KV, beside a reference; page 0 holds no number."""

    def __init__(
        self,
        page_size: int = 16,
        *,
        heads: int = 6,
        device: FakeDevice | None = None,
        scales: tuple[float, float] | None = None,
    ):
        self.page_size, self.heads = page_size, heads
        self.chance = random.Random(7)
        each = world(page_size, heads=heads)
        kv = each.random(LAYER + 1, PAGES, 2, page_size, 2, DIM)
        self.device = device or FakeDevice()
        how = {}
        reference: type[ReferenceAttention] = ReferenceAttention
        if scales is not None:
            how["scales"], coded = [scales], kv.to(FP8)
            for part, scale in enumerate(scales):
                kv[:, :, part] = coded[:, :, part].to(kv.dtype) * scale
            reference = type("Coded", (Rounded,), {"used": scales})
        self.reference = reference(kv.clone())
        self.attention = flashinfer(
            each, self.device, kv if scales is None else coded, cost=NEVER, **how
        )
        for pages in (self.attention.kv, self.reference.kv):
            pages[:, 0] = torch.nan
        room = LARGEST * -(-LONGEST // page_size)
        self.factory: Callable[[int], FlashInferAttention] = self.attention.buckets(LARGEST, room)
        self.buckets = {rows: self.factory(rows) for rows in buckets(LARGEST)}

    def batch(self, rows: int) -> PagedBatch:
        how = {"page_size": self.page_size, "pages": PAGES, "longest": LONGEST}
        return step(decoding_rows(self.chance, rows, **how), self.page_size)

    def numbers(self, rows: int, heads: int) -> torch.Tensor:
        seed = self.chance.randrange(1 << 30)
        return torch.randn(rows, heads, DIM, generator=torch.Generator().manual_seed(seed)).half()

    def run(self, bucket: FlashInferAttention, batch: PagedBatch, *arrays: torch.Tensor):
        key, value, query = arrays
        bucket.begin(batch)
        append = partial(bucket.append, LAYER, key, value)
        if bucket.kv.dtype == FP8:  # by a kernel of our own, of which the stand-in knows nothing
            self.device.stream.launch(append)
        else:
            append()
        return bucket.run(LAYER, query, scale=DIM**-0.5)

    def both(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same step in its bucket, padded, and through the reference."""
        batch = self.batch(rows)
        size = next(size for size in self.buckets if size >= rows)
        arrays = [self.numbers(size, count) for count in (2, 2, self.heads)]
        found = self.run(self.buckets[size], pad(batch, size), *arrays)
        expected = self.run(self.reference, batch, *(each[:rows] for each in arrays))
        return found[:rows], expected


@pytest.mark.parametrize(
    "kind",
    [{"page_size": 1}, {"page_size": 16}, {"heads": 8}, {"scales": (0.5, 0.25)}],
    ids=["tokens apart", "pages", "tensor cores", "float8"],
)
def test_steps_of_changing_size_in_all_buckets_give_what_the_reference_gives(kind: dict):
    pool = Pool(**kind)
    sizes = [*range(1, LARGEST + 1)] * 4
    pool.chance.shuffle(sizes)
    near = NEAR if "scales" not in kind else {"atol": 6e-3, "rtol": 6e-3}
    for rows in sizes:
        torch.testing.assert_close(*pool.both(rows), **near)
    if "scales" not in kind:
        assert torch.equal(pool.attention.kv[:, 1:], pool.reference.kv[:, 1:])
    calls = pool.attention._library.named(f"{DECODE}.__init__")
    assert [call["use_cuda_graph"] for call in calls] == [True] * len(pool.buckets)
    assert {call["use_tensor_cores"] for call in calls} == {"heads" in kind or "scales" in kind}


def test_what_a_graph_reads_never_moves():
    pool = Pool()
    library = pool.attention._library

    def places(size: int) -> list[int]:
        library.calls.clear()
        pool.both(size)
        (appended,) = library.named("append_paged_kv_cache")
        names = ("batch_indices", "positions", "kv_indices", "kv_indptr", "kv_last_page_len")
        return [appended[name].data_ptr() for name in names]

    first = {size: places(size) for size in pool.buckets}
    for size in [*pool.buckets, *reversed(pool.buckets)]:
        assert places(size) == first[size]
    assert not library.named("__init__"), "wrappers are made once"


def test_all_buckets_share_the_memory_of_one():
    pool = Pool()
    before = len(pool.device._sent)
    for size in pool.buckets:
        pool.both(size)
    assert len(pool.device._sent) == before
    assert len(pool.device.workspaces) == 1
    calls = pool.attention._library.calls
    resets = [args for name, args, _ in calls if name.endswith("reset_workspace_buffer")]
    assert len(resets) == len(pool.buckets)
    for which in (0, 1):
        assert len({args[which].untyped_storage().data_ptr() for args in resets}) == 1


def planned_twice(device: FakeDevice) -> Pool:
    """Two steps are begun one after the other, after one that has run."""
    pool = Pool(device=device)
    pool.both(4)
    for _ in range(2):
        pool.buckets[4].begin(pool.batch(4))
    return pool


def test_a_step_waits_for_the_copies_of_the_step_before():
    planned_twice(FakeDevice()).device.stream.finish()


def test_the_stand_in_notices_a_step_that_does_not_wait():
    with pytest.raises(RaceError):
        planned_twice(FakeDevice(deaf=True))


def test_the_stand_in_notices_memory_that_is_rewritten_while_it_is_copied():
    pool = Pool()
    pool.buckets[4].begin(pool.batch(4))
    pool.attention._staging._memory[0] += 1
    with pytest.raises(RaceError, match="overwritten"):
        pool.device.stream.finish()


def test_the_stand_in_notices_a_bucket_that_runs_by_the_plan_of_another():
    pool = Pool()
    for size in (4, 8):
        pool.both(size)
    for size in (4, 8):
        pool.buckets[size].begin(pool.batch(size))
    with pytest.raises(RaceError, match="plan of another step"):
        pool.buckets[4].run(LAYER, pool.numbers(4, pool.heads), scale=DIM**-0.5)


def test_a_bucket_takes_as_many_rows_and_pages_as_it_was_made_for():
    pool = Pool()
    pool.both(4)
    with pytest.raises(ValueError, match="batch size should be fixed"):
        pool.buckets[4].begin(pool.batch(3))


def test_nothing_on_the_device_is_read_by_the_host():
    each = world(16)
    device = FakeDevice("meta")
    attention = flashinfer(each, device, each.empty().to("meta"))
    bucket = attention.buckets(4, 100)(4)
    chance = random.Random(3)
    for _ in range(2):
        bucket.begin(step(decoding_rows(chance, 4, page_size=16, pages=50, longest=90), 16))
        key = torch.empty(4, each.kv_heads, each.dim, dtype=each.dtype, device="meta")
        bucket.append(LAYER, key, key)
        query = torch.empty(4, each.heads, each.dim, dtype=each.dtype, device="meta")
        assert bucket.run(LAYER, query, scale=1.0).shape == query.shape


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(64, 8, 128), (64, 1, 128), (96, 1, 128), (32, 2, 256), (32, 8, 64)],
)
def test_the_largest_bucket_is_one_that_the_workspace_is_enough_for(
    heads: int, kv_heads: int, dim: int
):
    device = FakeDevice()
    kv = torch.zeros(1, 2, 2, 1, kv_heads, dim, dtype=torch.float16)
    attention = FlashInferAttention(
        kv,
        heads,
        query_dtype=kv.dtype,
        most_tokens=4096,
        library=FakeFlashInfer(device),
        device=device,
    )
    rows = attention.most_rows(4096)
    (size,) = device.workspaces
    assert tiles_bytes(rows, heads, kv_heads, dim) <= size
    assert attention.most_rows(3) == 3
    if dim == 128:
        assert 100 < rows < 4096
        assert tiles_bytes(4096, heads, kv_heads, dim) > size


def test_without_tensor_cores_a_bucket_may_be_of_any_size():
    assert Pool(heads=6).attention.most_rows(1 << 20) == 1 << 20


def test_what_sharing_saves_is_what_the_cost_says_of_all_layers(monkeypatch: pytest.MonkeyPatch):
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30, 7):
        each.row(shared, own, 1)
    cost = module.CascadeCost(level=7.0, row=2.0, read=1.0, compute=0.25)
    attention = flashinfer(each, cost=cost)
    looks = []
    find = module.shared_runs
    monkeypatch.setattr(module, "shared_runs", lambda *how: looks.append(1) or find(*how))
    batch = step(each.rows, 16)
    layers = len(attention.kv)
    assert attention.saved(batch) == layers * (80 * 3 - 80 - 0.25 * 80 * 3 - 2 * 3 - 7)
    attention.begin(batch)
    attention.run(LAYER, each.random(3, each.heads, each.dim), scale=1.0)
    assert attention._library.named("merge_state_in_place"), "they are read together"
    assert len(looks) == 1, "what is shared is looked for once"
    attention.buckets(3, 100)(3).begin(step(each.rows, 16))
    assert len(looks) == 1, "and not at all where it is of no use"
    assert flashinfer(each, cost=NEVER).saved(batch) == 0.0
    assert flashinfer(each, cost=None).saved(batch) == 0.0
    assert flashinfer(each, cost=cost, together=False).saved(batch) == 0.0
