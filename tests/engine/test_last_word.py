"""What an engine says last is heard, whatever it was told meanwhile."""

from __future__ import annotations

import threading
from multiprocessing import Pipe

import msgspec

from radixserve.engine.messages import Abort, Failure, News, Stop
from radixserve.engine.process import child
from radixserve.errors import EngineDeadError


def test_an_engine_that_ends_waits_until_its_last_word_was_heard():
    """With a command unread it would reset the connection, and the word might be lost."""
    ours, theirs = Pipe()
    wire = child.Wire(theirs)
    ending = threading.Thread(target=child._fail, args=(wire, EngineDeadError("A rank was killed")))
    ours.send_bytes(msgspec.msgpack.encode(Abort("nobody")))
    ending.start()
    said = msgspec.msgpack.decode(ours.recv_bytes(), type=News)
    assert isinstance(said, Failure)
    assert str(said.fault.error()) == "A rank was killed"
    assert ending.is_alive()
    ours.send_bytes(msgspec.msgpack.encode(Stop()))
    ending.join(10)
    assert not ending.is_alive()
    assert not theirs.poll(0), "something was left unread"
