"""What passes between the FlashInfer backend, the GPU and the library: when, where and how."""

from __future__ import annotations

import inspect
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.attention.arrays import paged_batch
from radixserve.scheduling.plan import Row, StepPlan
from radixserve.tokens import pack
from tests.attention.fake_device import FakeDevice, RaceError
from tests.attention.fake_flashinfer import FakeFlashInfer
from tests.attention.flashinfer_world import DECODE, PAGED, coded, flashinfer, world
from tests.attention.world import LAYER, World


def test_overlapped_steps_never_write_to_what_is_still_copied():
    device, each = FakeDevice(), world(16)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    steps(each, device)
    device.stream.finish()


def test_the_stand_in_notices_a_step_that_does_not_wait():
    each = world(16)
    shared = each.pages(5)
    for own in (3, 30):
        each.row(shared, own, 1)
    with pytest.raises(RaceError):
        steps(each, FakeDevice(deaf=True))


def steps(each: World, device: FakeDevice) -> None:
    """Steps whose copies the device only makes when somebody waits for them."""
    backend = flashinfer(each, device)
    query = each.random(2, each.heads, each.dim)
    for step in range(4):
        backend.begin(paged_batch(StepPlan(step, each.rows), 16))
        for scale in (0.1, 0.2)[: 1 + step // 2]:  # the second is planned by run, in mid-step
            backend.run(0, query, scale=scale)
        for row in each.rows:
            row.start += 1
            if row.start % 16 == 0:
                row.pages.extend(each.pages(1))


def test_a_step_larger_than_all_before_finds_room():
    device, each = FakeDevice(), World(1, dtype=torch.float16)
    backend = flashinfer(each, device)
    before = backend._staging._memory
    for row in range(20):
        pages = array("i", [1 + (row * 7 + n) % 5000 for n in range(5000)])
        each.rows.append(Row("r", pack([1]), 4999, pages))
        backend.begin(paged_batch(StepPlan(row, each.rows), 1))
    assert len(backend._staging._memory) > len(before)
    device.stream.finish()


def test_nothing_on_the_device_is_read_by_the_host():
    device, each = FakeDevice("meta"), world(16)
    trunk = each.pages(10)
    each.row(trunk, 5, 1)
    branch = trunk + each.pages(6)
    for own in (5, 7):
        each.row(branch, own, 1)
    each.row([], 40, 30)
    for rows in (each.rows, each.rows[:3]):
        for kv in (each.empty(), coded(each)):
            backend = flashinfer(each, device, kv.to("meta"))
            batch = paged_batch(StepPlan(1, rows), 16)
            backend.begin(batch)
            tokens = len(batch.token_ids)
            key = torch.empty(tokens, each.kv_heads, each.dim, dtype=each.dtype, device="meta")
            backend.append(LAYER, key, key)
            query = torch.empty(tokens, each.heads, each.dim, dtype=each.dtype, device="meta")
            assert backend.run(LAYER, query, scale=1.0).shape == query.shape
            assert len(backend._library.named("merge_state_in_place")) == 2


def test_costs_are_measured_once_for_a_device_and_geometry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("radixserve.attention.flashinfer.ROWS", (2, 4))
    monkeypatch.setattr("radixserve.attention.flashinfer.TOKENS", (32, 64))
    each = world(16, heads=2)
    kv = each.empty()
    backend = flashinfer(each, kv=kv, cost=None)
    backend.calibrate()
    assert backend.cost is not None
    assert kv.isnan().all(), "measuring must not write"
    assert backend._library.named("merge_state_in_place"), "sharing was not measured"
    again = flashinfer(each, cost=None)
    again.calibrate()
    assert again.cost == backend.cost
    assert not again._library.calls
    (path,) = tmp_path.rglob("*.json")
    assert path.name.startswith("fake-GPU")


def real() -> Any:
    return pytest.importorskip(
        "flashinfer", reason="flashinfer-python is not installed, so that nothing can be bound"
    )


def function_of(library: Any, name: str) -> Any:
    for part in name.split("."):
        library = getattr(library, part)
    return library


def test_every_call_that_is_made_binds_to_the_real_signatures():
    library = real()
    bound: set[str] = set()
    for new, scaled in ((1, False), (9, True)):
        each = world(16)
        shared = each.pages(5)
        for own in (3, 30):
            each.row(shared, own, 1)
        each.row([], 40, new)
        backend = flashinfer(each, kv=coded(each) if scaled else None)
        each.attend([backend], soft_cap=2.0)
        bucket = backend.buckets(3, 100)(3)
        bucket.begin(paged_batch(StepPlan(1, each.rows[:2] + each.rows[:1]), 16))
        bucket.run(LAYER, each.random(3, each.heads, each.dim), scale=1.0, soft_cap=2.0)
        for name, args, kwargs in backend._library.calls:
            me = (None,) if "." in name else ()
            inspect.signature(function_of(library, name)).bind(*me, *args, **kwargs)
            bound.add(name)
    methods = ("__init__", "plan", "run")
    assert bound == {f"{each}.{method}" for each in (DECODE, PAGED) for method in methods} | {
        "append_paged_kv_cache",
        "merge_state_in_place",
        f"{DECODE}.reset_workspace_buffer",
    }


def test_the_stand_in_has_the_real_parameters_with_their_defaults():
    library = real()
    fake = FakeFlashInfer(FakeDevice())
    methods = ("__init__", "plan", "run")
    names = [f"{each}.{method}" for each in (DECODE, PAGED) for method in methods]
    names.append(f"{DECODE}.reset_workspace_buffer")
    for name in (*names, "append_paged_kv_cache", "merge_state_in_place"):
        theirs = inspect.signature(function_of(library, name)).parameters
        for parameter in inspect.signature(function_of(fake, name)).parameters.values():
            if parameter.name == "self":
                continue
            assert parameter.name in theirs, f"{name} has no {parameter.name}"
            default = theirs[parameter.name].default
            if default == "float16":
                default = torch.float16
            assert parameter.default == default, f"{name}({parameter.name})"
