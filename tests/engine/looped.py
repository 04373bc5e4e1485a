"""An engine's loop whose commands are all there before its first step."""

from __future__ import annotations

import queue
from collections.abc import Iterable

from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop
from radixserve.engine.messages import Command, News, Stop


def looped(core: EngineCore, commands: Iterable[Command]) -> list[News]:
    """What the loop says until it has nothing to do."""
    left = list(commands)
    sent: list[News] = []

    def get(wait: bool) -> Command:
        if left:
            return left.pop(0)
        if not wait:
            raise queue.Empty
        return Stop()

    EngineLoop(core, get, sent.append).run()
    return sent
