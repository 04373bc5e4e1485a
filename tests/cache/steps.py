"""What a simulated server plans and runs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from radixserve.cache.lease import Lease
from radixserve.cache.pages import PageCopy


@dataclass(eq=False)
class Sequence:
    """A request: its tokens, its lease, and what is planned of it."""

    namespace: bytes
    tokens: bytearray
    lease: Lease
    identities: list[int]
    planned: int
    in_flight: int = 0
    failed: bool = False
    """A step with it has failed on the device; those behind it compute nothing of use."""


@dataclass(frozen=True)
class Work:
    """One row of a step: tokens ``start:end`` of a sequence, by its pages when planned."""

    sequence: Sequence
    pages: array[int]
    start: int
    end: int


@dataclass
class Step:
    number: int
    copies: list[PageCopy]
    works: list[Work]
    fails: bool
    touched: set[int] = field(default_factory=set)
    ran: bool = False
