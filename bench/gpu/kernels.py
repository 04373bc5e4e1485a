"""Single operations: the rates that everything is held against, and kernels that move memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.device import Device, usual
from bench.gpu.geometry import Geometry
from bench.gpu.sizes import PAGE
from radixserve.kernels.kv_append import append_fp8, append_fp8_in_torch
from radixserve.kernels.page_copy import copy_pages, copy_pages_in_torch

Numbers = dict[str, Any]

IN_A_ROW = 8
"""Of what rates are measured by: a rate that is too low would make everything else look good."""
SIZES = {"cuda": ((1, 64, 512), (1, 256, 8192)), "cpu": ((1, 2), (1, 8))}
"""Pages that are copied at once, and tokens that are appended."""


class Kernels:
    """Operations on ``device``, in the shapes of a model's KV."""

    def __init__(self, geometry: Geometry, device: Device):
        self._geometry, self._device = geometry, device

    def about(self) -> Numbers:
        """How it runs."""
        return {"device": self._device.kind, "repeats": self._device.repeats}

    def rates(self) -> Numbers:
        """Bytes a second that a plain copy reads and writes, and operations a second of a product
        of square bf16 matrices."""
        device = self._device
        source = torch.empty(device.copied, dtype=torch.uint8, device=device.kind)
        target = torch.empty_like(source)
        copying = usual(device, lambda: target.copy_(source), times=IN_A_ROW)
        left, right = (
            torch.randn(device.side, device.side, dtype=torch.bfloat16, device=device.kind)
            for _ in range(2)
        )
        product = torch.empty_like(left)
        multiplying = usual(device, lambda: torch.mm(left, right, out=product), times=IN_A_ROW)
        return {
            "copy_bytes_per_s": 2 * device.copied / copying,
            "operations_per_s": 2 * device.side**3 / multiplying,
            "copied": device.copied,
            "side": device.side,
        }

    def copies(self) -> Numbers:
        """Copies of KV pages over all layers, by our kernel and in plain torch."""
        geometry = self._geometry
        counts, _ = SIZES[self._device.kind]
        half = max(counts)
        shape = (geometry.layers, 2 * half + 1, 2, PAGE, geometry.kv_heads, geometry.head_dim)
        kv = torch.zeros(shape, dtype=torch.bfloat16, device=self._device.kind)
        rows = []
        for count in counts:
            pairs = [(1 + i, 1 + half + i) for i in range(count)]
            moved = 2 * count * kv[:, 0].numel() * kv.itemsize
            for way, copy in (("ours", copy_pages), ("torch", copy_pages_in_torch)):
                run = _bound(copy, kv, pairs)
                rows.append(self._row(f"{count} pages, {way}", moved, run))
        return {"rows": rows}

    def appends(self) -> Numbers:
        """Keys and values of one layer from bf16 to FP8, by our kernel and in plain torch."""
        geometry, kind = self._geometry, self._device.kind
        _, counts = SIZES[kind]
        pages = max(counts) // PAGE + 1
        shape = (pages, 2, PAGE, geometry.kv_heads, geometry.head_dim)
        kv = torch.zeros(shape, dtype=torch.float8_e4m3fn, device=kind)
        rows = []
        for tokens in counts:
            key = torch.randn(tokens, *shape[-2:], dtype=torch.bfloat16, device=kind)
            slots = torch.randperm(pages * PAGE, device=kind)[:tokens]
            where = (kv, key, key, slots // PAGE, slots % PAGE)
            moved = 2 * key.numel() * 3
            ours = _bound(append_fp8, *where, key_scale=0.5, value_scale=0.5)
            plain = _bound(append_fp8_in_torch, *where, 0.5, 0.5)
            rows.append(self._row(f"FP8 of {tokens} tokens, ours", moved, ours))
            rows.append(self._row(f"FP8 of {tokens} tokens, torch", moved, plain))
        return {"rows": rows}

    def _row(self, name: str, moved: int, run: Callable[[], object]) -> Numbers:
        seconds = usual(self._device, run)
        return {
            "name": name,
            "microseconds": seconds * 1e6,
            "gb_per_s": moved / seconds / 1e9,
        }


def _bound(
    function: Callable[..., object], *arguments: object, **named: object
) -> Callable[[], object]:
    return lambda: function(*arguments, **named)
