"""Decoding in graphs gives what decoding without gives, and never overtakes the device."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

from radixserve.attention.arrays import PagedBatch, Unknown, paged_batch
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import ConfigError
from radixserve.model.cuda_graphs import (
    A_GRAPH,
    MOST_INDICES,
    BackendFactory,
    CudaGraphs,
    GraphedDecode,
    Room,
    buckets,
    pad,
    scratch,
    with_graphs,
)
from radixserve.model.decoder import Decoder
from radixserve.model.transformers_attention import NAME, PagedStep
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.model import tiny
from tests.model.graph_device import FakeDevice, FakeEvent, QueuedBackend, RaceError

PAGE = 4
PAGES = 40
LARGEST = 11
NEAR = {"atol": 1e-4, "rtol": 1e-4}
"""Another number of rows moves the last bits of a product; logits are about 10 here."""


def decoding(*contexts: int, token: int = 7) -> PagedBatch:
    """Rows that decode; row r holds ``contexts[r]`` tokens with the new one, in pages 5r + 1 …"""
    rows = []
    for r, context in enumerate(contexts):
        pages = array("i", range(5 * r + 1, 5 * r + 2 + (context - 1) // PAGE))
        rows.append(Row(str(r), pack([token + r]), context - 1, pages, SamplingParams()))
    return paged_batch(StepPlan(1, rows, decoding=len(rows)), PAGE)


def room(rows: int, indices: int = 1000) -> Room:
    return Room(rows, indices, PAGE, row_bytes=512)


class Setup:
    """A tiny model that decodes in graphs on a fake device."""

    def __init__(self, device: FakeDevice | None = None, largest: int = LARGEST):
        self.device = device or FakeDevice()
        model = tiny.model(tiny.FAMILIES["llama"]())
        model.set_attn_implementation(NAME)
        self.decoder = Decoder(model, torch.device("cpu"))
        self.kv = torch.randn(3, PAGES, 2, PAGE, 2, 16, generator=torch.Generator().manual_seed(3))
        self.backends: dict[int, QueuedBackend] = {}
        self._staging: list[int] = []
        self.graphed = GraphedDecode(
            lambda ids, positions, keep, backend: self.decoder.forward(
                ids, positions, keep, PagedStep(backend)
            ),
            self.backend,
            room(largest),
            self.device,
        )

    def backend(self, rows: int) -> QueuedBackend:
        made = QueuedBackend(ReferenceAttention(self.kv), self.device, self._staging)
        self.backends[rows] = made
        return made

    def eager(self, batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what the KV is afterwards."""
        kv = self.kv.clone()
        return self.decoder.logits(batch, ReferenceAttention(kv)), kv


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup()


def test_buckets_are_small_powers_of_two_then_eights_and_last_the_largest():
    assert buckets(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert buckets(27) == [1, 2, 4, 8, 16, 24, 27]
    assert [buckets(n) for n in (1, 2, 3, 4, 8)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 8],
    ]


def test_every_number_of_rows_has_a_bucket_that_is_not_much_larger():
    for largest in range(1, 70):
        found = buckets(largest)
        assert found == sorted(set(found))
        assert found[-1] == largest
        for rows in range(1, largest + 1):
            bucket = next(size for size in found if size >= rows)
            assert bucket - rows < 8
            assert bucket <= 2 * rows


def test_padded_rows_are_one_token_of_the_scratch_page():
    batch = decoding(9, 4)
    padded = pad(batch, 4)
    assert padded.qo_indptr.tolist() == [0, 1, 2, 3, 4]
    assert padded.kv_indptr.tolist() == [0, 3, 4, 5, 6]
    assert padded.kv_indices.tolist() == [1, 2, 3, 6, 0, 0]
    assert padded.last_page_len.tolist() == [1, 4, 1, 1]
    assert padded.token_ids.tolist() == [7, 8, 0, 0]
    assert padded.positions.tolist() == [8, 3, 0, 0]
    assert padded.append_pages.tolist() == [3, 6, 0, 0]
    assert padded.append_offsets.tolist() == [0, 3, 0, 0]
    assert padded.sample_rows.tolist() == [0, 1, 2, 3]
    for field in fields(PagedBatch):
        if field.name not in ("page_size", "scored", "unknown"):
            before, after = getattr(batch, field.name), getattr(padded, field.name)
            assert before.dtype == after.dtype, field.name


class PromptDevice(FakeDevice):
    """One that does at once what it is given."""

    def enqueue(self, kind: str, run: Callable[[], None]) -> None:
        super().enqueue(kind, run)
        self.finish()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        super().copy(target, source)
        self.finish()


def test_tokens_that_only_the_device_knows_are_filled_in_there():
    setup = Setup(PromptDevice())
    known = decoding(9, 4, 6)
    expected = setup.graphed(known).clone()
    places, tokens = torch.tensor([1, 2]), known.token_ids[1:].clone()
    some = replace(known, token_ids=torch.tensor([7, -1, -1]), unknown=Unknown(places, tokens))
    assert torch.equal(setup.graphed(some), expected)


def test_a_batch_that_fills_its_bucket_is_not_padded():
    batch = decoding(9, 4)
    assert pad(batch, 2) is batch


def test_a_batch_of_padding_alone_has_the_arrays_of_one():
    batch = scratch(3, PAGE)
    assert batch.qo_indptr.tolist() == batch.kv_indptr.tolist() == [0, 1, 2, 3]
    assert batch.kv_indices.tolist() == [0, 0, 0]
    assert batch.last_page_len.tolist() == [1, 1, 1]


def test_the_largest_is_captured_first_and_each_is_warmed_before(setup: Setup):
    assert list(setup.backends) == [11, 8, 4, 2, 1]
    fresh = Setup(largest=2)
    assert fresh.device.done == ["begin", "copy", "warm", "capture"] * 2


def test_only_steps_in_which_every_row_decodes_are_taken(setup: Setup):
    takes = setup.graphed.takes
    assert takes(decoding(9, 4))
    assert takes(decoding(*[3] * LARGEST)) is True
    prompt = Row("p", pack([1, 2]), 0, array("i", [1]), SamplingParams())
    chunk = Row("c", pack([1]), 0, array("i", [1]))
    assert not takes(paged_batch(StepPlan(1, [prompt]), PAGE))
    assert not takes(paged_batch(StepPlan(1, [chunk]), PAGE))
    assert not takes(pad(decoding(3), LARGEST + 1))


def test_what_has_more_pages_than_there_is_room_for_is_not_taken():
    takes = GraphedDecode.takes
    graphed = GraphedDecode.__new__(GraphedDecode)
    for batch, needed in ((decoding(9, 4), 3 + 1 + 2), (decoding(9, 4, 4, 4), 3 + 3)):
        graphed._room = room(4, indices=needed)
        assert takes(graphed, batch)
        graphed._room = room(4, indices=needed - 1)
        assert not takes(graphed, batch)


def test_there_is_room_for_rows_of_the_longest_contexts_whatever_pages_they_share():
    assert Room.of(64, 100, 16, 2).indices == 64 * 7
    assert Room.of(64, 96, 16, 2).indices == 64 * 6
    assert Room.of(1024, 1 << 20, 1, 2).indices == MOST_INDICES


def test_graphs_hold_logits_twice_the_page_ids_and_something_each():
    assert Room(27, 1000, 16, row_bytes=512).held == 2 * 27 * 512 + 4000 + 7 * A_GRAPH


@pytest.mark.parametrize("contexts", [(9,), (9, 4), (1, 2, 3), (16, 5, 8, 1, 11), (3,) * 8])
def test_logits_and_pages_are_those_without_graphs(setup: Setup, contexts: tuple[int, ...]):
    setup.kv[:, 0] = torch.nan  # what padded rows leave there concerns nobody
    batch = decoding(*contexts)
    assert setup.graphed.takes(batch)
    expected, kv = setup.eager(batch)
    logits = setup.graphed(batch)
    setup.device.finish()
    assert logits.shape == expected.shape
    torch.testing.assert_close(logits, expected, **NEAR)
    torch.testing.assert_close(setup.kv[:, 1:], kv[:, 1:], **NEAR)


def test_a_step_may_be_given_while_the_one_before_still_runs(setup: Setup):
    steps = [decoding(9, 4), decoding(7, token=31), decoding(5, 6, 2, token=90), decoding(3, 3)]
    expected, seen = [], []
    kv = setup.kv.clone()
    for batch in steps:
        expected.append(setup.decoder.logits(batch, ReferenceAttention(kv)).clone())
        logits = setup.graphed(batch)
        mine = torch.empty_like(logits)
        setup.device.enqueue("read", lambda mine=mine, logits=logits: mine.copy_(logits))
        seen.append(mine)
    setup.device.finish()
    for mine, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(mine, wanted, **NEAR)


def test_logits_are_not_there_before_the_device_has_run(setup: Setup):
    first = setup.graphed(decoding(9))
    setup.device.finish()
    before = first.clone()
    second = setup.graphed(decoding(9, token=100))
    assert torch.equal(second, before)
    setup.device.finish()
    assert not torch.equal(second, before)


def test_a_step_allocates_no_buffer_and_gives_attention_the_padded_arrays(setup: Setup):
    before = setup.device.allocated
    setup.graphed(decoding(9, 4, 6))
    setup.device.finish()
    setup.graphed(decoding(9, 4, 7))
    setup.device.finish()
    assert setup.device.allocated == before
    assert setup.backends[4].begun[-1].last_page_len.tolist() == [1, 4, 3, 1]
    assert setup.device.done[-3:] == ["begin", "copy", "replay"]


def test_who_does_not_wait_for_the_copies_is_found_out():
    class DeafDevice(FakeDevice):
        def event(self) -> FakeEvent:
            return FakeEvent(self.stream, deaf=True)

    setup = Setup(DeafDevice(), largest=1)
    setup.graphed(decoding(9))
    with pytest.raises(RaceError, match="planned while"):
        setup.graphed(decoding(9, token=100))
    setup.backends[1]._staging.clear()
    setup.graphed(decoding(9, token=100))
    with pytest.raises(RaceError, match="overwritten"):
        setup.device.finish()


def test_a_model_that_cannot_be_captured_is_refused_with_the_way_out():
    class Refusing(FakeDevice):
        def capture(self, run: object) -> object:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(ConfigError, match=r"decoding 3 rows .* is capturing\).*--enforce-eager"):
        Setup(Refusing(), largest=3)


class Attention:
    """Which says how much it saves outside of graphs."""

    seconds = 0.0

    def __init__(self, backends: BackendFactory):
        self._backends = backends

    def most_rows(self, rows: int) -> int:
        return min(rows, 2)

    def buckets(self, rows: int, indices: int) -> BackendFactory:
        assert (rows, indices) == (2, 1000)
        return self._backends

    def saved(self, batch: PagedBatch) -> float:
        return self.seconds


def test_graphs_take_what_decodes_unless_attention_saves_more_than_launching_costs(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
):
    class Clock(FakeDevice):
        now = 0.0

        def enqueue(self, kind: str, run: object) -> None:
            super().enqueue(kind, run)  # type: ignore[arg-type]
            self.now += 2.0 * (kind == "replay")

    device = Clock()

    def eager(batch: PagedBatch) -> torch.Tensor:
        device.now += 5.0
        return torch.tensor(1)

    monkeypatch.setattr("radixserve.model.cuda_graphs.time.perf_counter", lambda: device.now)
    attention = Attention(lambda rows: QueuedBackend(ReferenceAttention(setup.kv), device, []))
    chosen = with_graphs(
        eager, lambda ids, *_: torch.zeros(len(ids), 3), attention, room(LARGEST), device
    )
    for attention.seconds, graphed in ((0.0, True), (2.9, True), (3.1, False)):
        assert (chosen(decoding(9, 4)).ndim == 2) is graphed
    attention.seconds = 0.0
    assert chosen(decoding(9, 4, 4)).ndim == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_replays_what_was_captured_with_new_inputs():
    device, cuda = CudaGraphs(torch.device("cuda")), torch.device("cuda")
    table = torch.randn(300, 64, device=cuda)

    class Nothing:
        def begin(self, batch: PagedBatch) -> None:
            pass

    graphed = GraphedDecode(
        lambda ids, positions, keep, backend: (table[ids] * (1 + positions[:, None]))[keep],
        lambda rows: Nothing(),  # type: ignore[arg-type, return-value]
        room(20),
        device,
    )
    for token in range(50):
        batch = decoding(9, 4, 1, token=token)
        expected = table[batch.token_ids.to(cuda)] * (1 + batch.positions.to(cuda)[:, None])
        torch.testing.assert_close(graphed(batch), expected)
