"""How the server process ends."""

from __future__ import annotations

import signal

import pytest
import uvicorn

from radixserve.server.run import _Server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_requests_finish_and_the_second_does_not_wait(number: int):
    server = _Server(uvicorn.Config(lambda scope: None))
    server.handle_exit(number, None)
    assert server.should_exit
    assert not server.force_exit
    server.handle_exit(number, None)
    assert server.force_exit
