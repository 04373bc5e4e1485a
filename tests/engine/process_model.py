"""A process whose engine runs the simulated model; ``supervised`` says how it fails.

It is started again and again, and so imports no tokenizer.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from radixserve.config import EngineConfig
from radixserve.engine.core import Runner
from radixserve.engine.grammars import Grammars
from radixserve.engine.messages import Found, RankLost
from radixserve.engine.process import child
from radixserve.engine.process.child import Wire
from radixserve.errors import EngineDeadError, ModelError
from radixserve.scheduling.plan import Sampled, StepPlan
from tests.engine.saying import SayingModel


class FailingModel(SayingModel):
    """Does what ``how`` says at its fourth step; nothing if that is ``well``."""

    def __init__(self, config: EngineConfig, num_pages: int, offset: int, how: str):
        super().__init__(config, num_pages, offset)
        self._how = how

    def execute(self, plan: StepPlan) -> list[tuple[Sampled, ...]]:
        if self.steps == 3:
            match self._how:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "end":
                    raise EngineDeadError("A rank was killed.")
                case "fail":
                    self.fail_at = 4
                case "memory":
                    self.steps += 1
                    raise MemoryError
                case "commit":
                    self.steps += 1
                    return [()] * (len(plan.rows) + 1)
                case "pause":
                    time.sleep(1)
                case "hang":
                    time.sleep(600)
        match self._how:
            case "slow":
                time.sleep(0.005)
            case "useless":
                raise RuntimeError("The device has fallen off the bus.")
        return super().execute(plan)


def load(config: EngineConfig, wire: Wire) -> tuple[Runner, Grammars, EngineConfig]:
    """Raises ModelError if there is a file ``broken`` in the model's folder."""
    folder = Path(config.tokenizer or "")
    if (folder / "broken").exists():
        raise ModelError("The weights are torn.")
    how = (folder / "how").read_text()
    if (folder / "once").exists():
        (folder / "how").write_text("well")
    wire.send(Found("tiny", str(folder)))
    if how == "lost":
        threading.Thread(target=lose, args=(folder / "lose", wire), daemon=True).start()
    offset = int((folder / "offset").read_text())
    return FailingModel(config, 200, offset, how), Grammars(None), config


def lose(signal: Path, wire: Wire) -> None:
    """Say that a rank was lost once ``signal``, a FIFO, is written to."""
    wire.tell(RankLost(signal.read_text()))


def main() -> None:
    child.main(load)
