"""The torch decoder over FlashInfer's attention, decoding in graphs on a device behind the host.

The graphs hold operations on memory and nothing else, as on a GPU.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from radixserve.attention.arrays import PagedBatch, paged_batch
from radixserve.attention.backend import AttentionBackend
from radixserve.attention.cascade import CascadeCost
from radixserve.attention.flashinfer import ALWAYS, FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.staging import CudaDevice
from radixserve.config import EngineConfig
from radixserve.model.cuda_graphs import (
    CudaGraphs,
    Room,
    buckets,
    with_graphs,
)
from radixserve.model.execution import _Torch, executable, graph_room
from radixserve.model.kv_storage import KvGeometry
from radixserve.model.loader import describe
from radixserve.model.ops import TorchOps
from radixserve.model.parallel import ALONE, Parallel
from radixserve.model.sampler import sample
from radixserve.model.torch_decoder import TorchDecoder, geometry
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.scheduling.sampling import SamplingParams
from radixserve.tokens import pack
from tests.attention.decoding import decoding_rows, step
from tests.attention.fake_device import FakeDevice, FakeEvent, RaceError
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.model import tiny
from tests.model.graph_device import GraphDevice

PAGE, PAGES, LARGEST, LONGEST = 4, 64, 11, 60
ROOM = Room.of(LARGEST, LONGEST, PAGE, row_bytes=500)
NEAR = {"atol": 5e-2, "rtol": 2e-2}
"""In fp16, where another number of rows moves the last bits; logits are about 3 here."""


class Behind(TorchDecoder):
    """Without a graph it computes at once: what was queued before has to be done before."""

    device_behind: GraphDevice

    def logits(self, batch: PagedBatch, backend: AttentionBackend) -> torch.Tensor:
        self.device_behind.finish()
        return super().logits(batch, backend)


def decoder(kind: type[TorchDecoder], kv_heads: int, device: str = "cpu") -> TorchDecoder:
    small = tiny.small(heads=4, inner=96)
    config = LlamaConfig(**small | {"head_dim": 64, "num_key_value_heads": kv_heads})
    tensors = {name: each.detach() for name, each in tiny.model(config).state_dict().items()}
    return kind(
        config,
        torch.float16,
        tensors,
        TorchOps(),
        device=torch.device(device),
        max_model_len=LONGEST,
    )


class Served:
    """A tiny model as it is served, and the same over KV of its own that runs step by step."""

    def __init__(
        self,
        kv_heads: int = 2,
        *,
        room: Room = ROOM,
        cost: CascadeCost | None = None,
    ):
        self.device = GraphDevice()
        beside = FakeDevice(stream=self.device.stream)
        self.library = FakeFlashInfer(beside)
        self.decoder = decoder(Behind, kv_heads)
        assert isinstance(self.decoder, Behind)
        self.decoder.device_behind = self.device
        self.chance = random.Random(5)
        shape = (4, PAGES, 2, PAGE, kv_heads, 64)
        self.kv = torch.randn(shape, generator=torch.Generator().manual_seed(3)).half()
        self.kv[:, 0] = torch.nan  # nobody's
        self.plain_kv, self._plain = self.kv.clone(), decoder(TorchDecoder, kv_heads)

        def attention(kv: torch.Tensor, geometry: KvGeometry) -> AttentionBackend:
            return FlashInferAttention(
                kv,
                geometry.heads,
                query_dtype=torch.float16,
                most_tokens=256,
                cost=cost,
                library=self.library,
                device=beside,
            )

        form = geometry(self._config(kv_heads), torch.float16)
        self.model = _Torch(self.decoder, form, attention, "a model", room, follows=False)
        self.logits = self.model.on(self.kv, self.device)
        self.device.done.clear()

    @staticmethod
    def _config(kv_heads: int) -> LlamaConfig:
        small = tiny.small(heads=4, inner=96)
        return LlamaConfig(**small | {"head_dim": 64, "num_key_value_heads": kv_heads})

    def plain(self, batch: PagedBatch) -> torch.Tensor:
        return self._plain.logits(batch, ReferenceAttention(self.plain_kv))

    def rows(self, count: int) -> list[Row]:
        how = {"page_size": PAGE, "pages": PAGES, "longest": LONGEST}
        return decoding_rows(self.chance, count, **how)

    def read(self, logits: torch.Tensor) -> torch.Tensor:
        """A copy that the device makes when it gets there."""
        mine = torch.empty_like(logits)
        self.device.enqueue("read", lambda: mine.copy_(logits))
        return mine

    @property
    def replays(self) -> int:
        self.device.finish()
        return self.device.done.count("replay")


@pytest.mark.parametrize("kv_heads", [1, 2], ids=["tensor cores", "cuda cores"])
def test_many_steps_of_all_sizes_give_the_logits_and_kv_of_steps_without_graphs(kv_heads: int):
    served = Served(kv_heads)
    sizes = [*range(1, LARGEST + 1)] * 3
    served.chance.shuffle(sizes)
    found, expected = [], []
    for size in sizes:  # no step waits for the one before
        batch = step(served.rows(size), PAGE)
        found.append(served.read(served.logits(batch)))
        expected.append(served.plain(batch))
    assert served.replays == len(sizes)
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, **NEAR)
    torch.testing.assert_close(served.kv[:, 1:], served.plain_kv[:, 1:], **NEAR)
    cores = {call["use_tensor_cores"] for call in served.library.named("Wrapper.__init__")[-1:]}
    assert cores == {kv_heads == 1}


def test_sequences_that_grow_join_and_leave_are_decoded_as_without_graphs():
    served, running, names = Served(), [], 0
    free = list(range(1, PAGES))
    replays = 0
    for turn in range(60):
        rows = []
        if turn % 3 == 0 and len(running) < LARGEST:
            tokens = [served.chance.randrange(250) for _ in range(served.chance.randrange(1, 10))]
            names += 1
            pages = array("i", [free.pop() for _ in range(-(-len(tokens) // PAGE))])
            rows.append(Row(str(names), pack(tokens), 0, pages, SamplingParams()))
        for row in running:
            if row.start // PAGE == len(row.pages):
                row.pages.append(free.pop())
        batch = paged_batch(StepPlan(turn, running + rows, decoding=len(running)), PAGE)
        replays += not rows or rows[0].count == 1
        mine = served.read(served.logits(batch))
        wanted = served.plain(batch)
        served.device.finish()
        torch.testing.assert_close(mine, wanted, **NEAR)
        for row, token in zip(running + rows, wanted.argmax(-1).tolist(), strict=True):
            row.start += row.count
            row.tokens = pack([token])
        running += rows
        for row in [row for row in running if row.start > 12]:
            free += row.pages
            running.remove(row)
    assert served.replays == replays
    assert replays > 30
    torch.testing.assert_close(served.kv[:, 1:], served.plain_kv[:, 1:], **NEAR)


def test_steps_that_are_not_of_decoding_rows_alone_run_without_a_graph_between_others():
    served = Served()
    prompt = Row("p", pack(range(9)), 4, array("i", [3, 1, 2, 4]), SamplingParams())
    chunk = Row("c", pack(range(6)), 0, array("i", [6, 7]))
    kinds = [served.rows(LARGEST + 1), [prompt], [*served.rows(3), chunk], served.rows(3)]
    for rows, graphed in zip([*kinds, *kinds], (0, 0, 0, 1) * 2, strict=True):
        before = served.replays
        batch = paged_batch(StepPlan(1, rows), PAGE)
        mine = served.read(served.logits(batch))
        wanted = served.plain(batch)
        assert served.replays - before == graphed
        torch.testing.assert_close(mine, wanted, **NEAR)


def sharers(count: int) -> PagedBatch:
    shared = [60, 61, 62, 63, 59]
    rows = [
        Row(str(row), pack([row]), 21, array("i", [*shared, row + 1]), SamplingParams())
        for row in range(count)
    ]
    return step(rows, PAGE)


def test_a_prefix_that_is_better_read_once_is_read_once_without_a_graph():
    for cost, graphed in ((ALWAYS, 0), (replace(ALWAYS, level=1e9), 1), (None, 1)):
        served = Served(cost=cost)
        mine, wanted = served.read(served.logits(sharers(3))), served.plain(sharers(3))
        assert served.replays == graphed
        merged = bool(served.library.named("merge_state_in_place"))
        assert merged is not bool(graphed)
        torch.testing.assert_close(mine, wanted, **NEAR)


def test_a_batch_with_more_pages_than_there_is_room_for_runs_without_a_graph():
    served = Served(room=replace(ROOM, indices=3 * 6 + LARGEST - 3))
    for count, graphed in ((3, 1), (4, 0), (3, 1)):
        before = served.replays
        mine, wanted = served.read(served.logits(sharers(count))), served.plain(sharers(count))
        assert served.replays - before == graphed
        torch.testing.assert_close(mine, wanted, **NEAR)


def test_the_stand_in_notices_a_step_that_does_not_wait_for_the_copies_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
):
    served = Served()
    monkeypatch.setattr(FakeEvent, "synchronize", lambda event: None)
    served.logits(step(served.rows(3), PAGE))
    with pytest.raises(RaceError):
        served.logits(step(served.rows(3), PAGE))


def test_the_stand_in_notices_attention_whose_arrays_move():
    served = Served()

    class Moving(FlashInferAttention):
        def buckets(self, rows: int, indices: int) -> Any:
            return lambda count: self

    kv, beside = served.kv.clone(), FakeDevice(stream=served.device.stream)
    moving = Moving(
        kv,
        4,
        query_dtype=torch.float16,
        most_tokens=256,
        library=FakeFlashInfer(beside),
        device=beside,
    )
    chosen = with_graphs(
        lambda batch: served.decoder.logits(batch, moving),
        served.decoder.forward,
        moving,
        ROOM,
        served.device,
    )
    batch = step(served.rows(3), PAGE)
    mine = served.read(chosen(batch))
    served.device.finish()
    assert not (mine - served.plain(batch)).abs().max() < 1.0


def sampled(served: Served, logits: torch.Tensor, rows: list[Row]) -> list[int]:
    """Tokens of ``rows``; the sampler asks the device, which answers in order."""

    class OnDevice(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            served.device.finish()
            return super().__torch_function__(func, types, args, kwargs or {})

    return [own.token for own, *_ in sample(logits.as_subclass(OnDevice), rows, ())]


def test_the_sampler_has_read_a_step_before_the_next_one_overwrites_it():
    served, kept = Served(), []
    for count in (3, 2, 8, 3):
        rows = served.rows(count)
        for at, row in enumerate(rows):
            row.sampling = SamplingParams(temperature=0.8 * (at % 2), seed=count)
        batch = step(rows, PAGE)
        logits = served.logits(batch)
        expected = served.plain(batch)
        assert sampled(served, logits, rows) == sampled(served, expected, rows)
        kept.append((logits, rows))
    # And this is what it would have read later: the logits of another step.
    (first, rows), (last, _) = kept[0], kept[-1]
    assert sampled(served, first, rows) == sampled(served, last, rows)
    assert served.replays == 4


def test_graphs_are_captured_only_where_the_model_is_given_a_device_for_them():
    served = Served()
    assert served.model.graphs == ROOM.held > 0
    served.model.on(served.kv)
    assert served.device.done == []
    served.model.on(served.kv, served.device)
    assert served.device.done.count("capture") == len(buckets(LARGEST))


def test_a_model_on_one_gpu_with_flashinfer_has_graphs_unless_they_are_turned_off(tmp_path: Path):
    path = tiny.write(tmp_path)
    config = EngineConfig(device="cpu", max_num_seqs=7, page_size=16, attention_backend="reference")
    on_cpu = describe(path, config)
    on_gpu = replace(on_cpu, device=torch.device("cuda"), dtype=torch.bfloat16)
    vocabulary = on_cpu.config.vocab_size
    assert graph_room(on_gpu, config, ALONE) == Room(7, 7 * 16, 16, 2 * vocabulary)
    assert graph_room(on_gpu, replace(config, enforce_eager=True), ALONE) is None
    assert graph_room(on_gpu, config, Parallel(0, 2)) is None
    assert graph_room(replace(on_gpu, dtype=torch.float32), config, ALONE) is None
    assert graph_room(on_cpu, config, ALONE) is None
    assert executable(on_cpu, config).graphs == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kv_heads", [1, 2], ids=["tensor cores", "cuda cores"])
def test_a_gpu_decodes_in_graphs_what_it_decodes_without(kv_heads: int):
    cuda = torch.device("cuda")
    model = decoder(TorchDecoder, kv_heads, "cuda")
    kv = torch.randn(4, PAGES, 2, PAGE, kv_heads, 64, device=cuda).half()
    plain_kv, chance = kv.clone(), random.Random(5)

    def attention(kv: torch.Tensor) -> FlashInferAttention:
        return FlashInferAttention(
            kv, 4, query_dtype=torch.float16, most_tokens=256, device=CudaDevice(cuda)
        )

    served, plain = attention(kv), attention(plain_kv)
    backends: list[AttentionBackend] = [served, plain]
    graphed, eager = (lambda batch, over=each: model.logits(batch, over) for each in backends)
    graphed = with_graphs(graphed, model.forward, served, ROOM, CudaGraphs(cuda))
    found, expected = [], []
    for _ in range(100):
        rows = decoding_rows(
            chance, chance.randrange(1, LARGEST + 1), page_size=PAGE, pages=PAGES, longest=LONGEST
        )
        batch = step(rows, PAGE)
        found.append(graphed(batch).clone())
        expected.append(eager(batch))
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, **NEAR)
    torch.testing.assert_close(kv[:, 1:], plain_kv[:, 1:], **NEAR)
