"""What the engine process sends is checked before a byte of it is written."""

import asyncio
import socket

import pytest

from warmfleet_contracts.errors import ContractError
from warmfleet_worker.engine import messages
from warmfleet_worker.engine.messages import EngineFailed, encode_message
from warmfleet_worker.vllm_engine import process
from warmfleet_worker.vllm_engine.process import ServerChannel, ServerGoneError

MESSAGE = EngineFailed(reason="a" * 10_000)


@pytest.fixture
async def channel():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    with ours:
        yield ServerChannel(reader, writer), writer.transport
    writer.transport.abort()


async def test_nothing_is_queued_for_a_server_that_reads_nothing_beyond_the_bound(monkeypatch, channel):
    monkeypatch.setattr(process, "MAX_UNSENT_BYTES", 100_000)
    sending, transport = channel
    with pytest.raises(ServerGoneError):
        while True:
            sending.send(MESSAGE)
    assert 80_000 < transport.get_write_buffer_size() <= 100_000


async def test_nothing_is_written_of_a_message_that_is_too_large(monkeypatch, channel):
    size_bytes = len(encode_message(MESSAGE)) - 4
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", size_bytes - 1)
    sending, transport = channel
    with pytest.raises(ContractError):
        sending.send(MESSAGE)
    assert transport.get_write_buffer_size() == 0
