"""Responses that can be asked for again, or gone on from, each by its tenant alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from radixserve.server.errors import absent
from radixserve.server.fair import FairLru
from radixserve.server.responses.items import response_of
from radixserve.server.responses.wire import Item, ResponseObject

if TYPE_CHECKING:
    from radixserve.server.responses.live import Live

MOST = 10_000
"""Responses of all tenants together."""
MOST_BYTES = 256 * 2**20
OVERHEAD = 512
"""Bytes that a record takes beside its texts."""


def turn_of(id: str) -> str:
    """The name by which the engine knows where a response ends that others may go on from."""
    return f"response:{id}"


class _Said(msgspec.Struct):
    """What of a response the next one builds on."""

    output: list[Item]


@dataclass(frozen=True, slots=True)
class Record:
    """One response as JSON, which is the form in which it takes the least memory."""

    response: bytes
    input: bytes
    """The items that it came with, without those of earlier responses."""
    previous: str | None
    namespace: bytes = b""
    """Of its prompt, within the tenant's."""

    @classmethod
    def of(cls, response: ResponseObject, items: list[Item], namespace: bytes = b"") -> Record:
        encode = msgspec.json.encode
        return cls(encode(response), encode(items), response.previous_response_id, namespace)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.response) + len(self.input) + OVERHEAD

    def shown(self) -> bytes:
        """The response as JSON."""
        return self.response

    def asked(self) -> list[Item]:
        """The items of its input."""
        return msgspec.json.decode(self.input, type=list[Item])

    def items(self) -> list[Item]:
        """Those of its input, and then what was said."""
        return self.asked() + msgspec.json.decode(self.response, type=_Said).output


class Responses:
    """What is stored, and what runs. Belongs to the event loop.

    Both bounds hold for all tenants together, as ``FairLru`` has it.

    Args:
        gone: Is told of whom, and of which namespace of theirs, a turn is that nobody can go on
            from any more, by the name that the engine knows it by.
    """

    def __init__(
        self,
        gone: Callable[[str, bytes, str], None],
        *,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ):
        self._gone = gone
        self._records: FairLru[str, Record] = FairLru(most=most, most_bytes=most_bytes)
        self._live: dict[tuple[str, str], Live] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of all that is stored."""
        return self._records.size

    def begin(self, tenant: str, live: Live) -> None:
        """From now on ``live`` can be asked for, and cancelled."""
        self._live[tenant, live.turn.response.id] = live

    def live(self, tenant: str, id: str) -> Live | None:
        """The response with this id, while it runs."""
        return self._live.get((tenant, id))

    def finish(self, tenant: str, live: Live) -> None:
        """It runs no more. What has ended is stored, if it is to be."""
        response = live.turn.response
        self._live.pop((tenant, response.id), None)
        if live.wanted and not live.turn.running:
            self.put(tenant, response.id, Record.of(response, live.items, live.namespace))

    def put(self, tenant: str, id: str, record: Record) -> None:
        """Store ``record``, if it is not too large by itself. O(what has to go · tenants)."""
        for owner, gone, lost in self._records.put(tenant, id, record, record.size):
            self._gone(owner, lost.namespace, turn_of(gone))

    def get(self, tenant: str, id: str) -> Record | None:
        """The record of a response that has ended; it counts as used. O(1)."""
        return self._records.get(tenant, id)

    def remove(self, tenant: str, id: str) -> bool:
        """Forget a response; whether there was one. O(1)."""
        return self._records.remove(tenant, id)

    def forget(self, tenant: str) -> None:
        """Everything of one tenant; what still runs is not found any more, and not stored."""
        self._records.forget(tenant)
        for owner, id in list(self._live):
            if owner == tenant:
                self._live.pop((owner, id)).wanted = False

    def chain(self, tenant: str, last: str | None) -> list[Record]:
        """A response and all those that it went on from, the first one first. O(their number).

        Raises:
            ApiError: 404, one of them is not stored.
        """
        chain: list[Record] = []
        at = last
        while at is not None:
            record = self.get(tenant, at)
            if record is None:
                what = "is not stored here" if at == last else f"goes on from {at!r}, which is gone"
                raise absent(
                    "previous_response_id",
                    f"The response {(last or '')[:100]!r} {what}. Send the whole "
                    "conversation as input instead",
                    "previous_response_not_found",
                )
            chain.append(record)
            at = record.previous
        return chain[::-1]

    def referred(self, tenant: str, ids: Iterable[str]) -> list[Record]:
        """The stored responses that items with these ids belong to."""
        responses = {response_of(id) for id in ids}
        return [record for id in responses if id and (record := self.get(tenant, id))]
