"""The engine process from its socket to a stand-in for vLLM: what its server is sent, and when it ends."""

import asyncio
import multiprocessing
import signal
import socket
import threading
import time
from contextlib import asynccontextmanager

import pytest

from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.vllm.loop_runs import add
from warmfleet_testing.vllm.package import install
from warmfleet_testing.vllm.stand_in import BLOCK_TOKENS, facts
from warmfleet_testing.vllm.wire import Wire
from warmfleet_worker.engine.messages import (
    ClearCache,
    EngineFailed,
    EngineReady,
    StepReport,
    decode_engine_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine import process
from warmfleet_worker.vllm_engine.process import ServerChannel, ServerGoneError, serve


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def package(monkeypatch, tmp_path):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(process.FILE_VARIABLE, "")
    return install(monkeypatch, facts(), Wire())


class Server:
    """The other end of an engine process's socket."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._frames = message_reader()
        self._messages = []

    def send(self, message):
        self._writer.write(encode_message(message))

    async def receive(self):
        async with asyncio.timeout(20):
            while not self._messages:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._messages += map(decode_engine_message, self._frames.feed(data))
        return self._messages.pop(0)

    async def updates(self, sequence_id):
        """Of one sequence, until it has ended, and the last report."""
        found = []
        while not found or not found[-1].finish_reason:
            report = await self.receive()
            found += [update for update in report.updates if update.sequence_id == sequence_id]
        return found, report

    async def close(self):
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def connected():
    """The server, and the engine process's socket to it."""
    ours, theirs = socket.socketpair()
    server = Server(*await asyncio.open_connection(sock=ours))
    try:
        yield server, theirs
    finally:
        await server.close()


@asynccontextmanager
async def served(package, model_path, **settings):
    """The server of an engine process, and that process, whose vLLM steps by itself."""
    settings = EngineSettings(
        model_path=str(model_path), block_size_tokens=BLOCK_TOKENS, kv_cache_bytes=1, **settings
    )
    async with connected() as (server, theirs):
        stepping = asyncio.create_task(package.core.run_steps())
        yield server, asyncio.create_task(serve(theirs, settings))
        stepping.cancel()


@asynccontextmanager
async def channel():
    async with connected() as (server, theirs):
        made = ServerChannel(*await asyncio.open_connection(sock=theirs))
        yield made, server
        made.close()


async def test_a_request_goes_to_vllm_and_its_tokens_hits_and_load_come_back(package, model_path):
    async with served(package, model_path) as (server, serving):
        ready = await server.receive()
        assert isinstance(ready, EngineReady)
        assert (ready.total_blocks, ready.block_size_tokens) == (64, BLOCK_TOKENS)
        assert 0 < ready.imports_at_seconds <= ready.load_at_seconds

        server.send(add(list(range(100)), 1))
        first, _ = await server.updates(1)
        server.send(add(list(range(100)), 2))
        second, report = await server.updates(2)
        server.send(ClearCache())
        server.send(add(list(range(100)), 3))
        third, _ = await server.updates(3)

        assert [token for update in first for token in update.token_ids] == [100, 101, 102, 103]
        assert [updates[0].cached_tokens for updates in (first, second, third)] == [0, 96, 0]
        assert report.load.total_blocks == 64
        await server.close()
        assert await serving == 0
        assert package.made[0].has_shut_down


async def test_it_ends_without_a_failure_when_its_server_is_gone(package, model_path):
    async with served(package, model_path) as (server, serving):
        await server.receive()
        await server.close()
        assert await asyncio.wait_for(serving, 10) == 0


async def test_a_vllm_that_does_not_start_is_a_failure_with_its_reason(package, model_path):
    def fail():
        raise RuntimeError("Engine core initialization failed.")

    package.start = fail
    async with served(package, model_path) as (server, serving):
        reason = "vLLM did not start: RuntimeError: Engine core initialization failed."
        assert await server.receive() == EngineFailed(reason=reason, refused=False)
        assert await serving == 1


async def test_a_core_that_hangs_at_the_start_is_ended_and_named(package, model_path):
    """As in vLLM: the start waits for the process without a limit, and fails when that is gone."""
    cores = []

    def start():
        cores.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)))
        cores[0].start()
        cores[0].join()
        raise RuntimeError(f"Engine core initialization failed. Failed core proc(s): {cores[0].exitcode}")

    package.start = start
    async with served(package, model_path, startup_seconds=1) as (server, serving):
        failure = await server.receive()
        assert await serving == 1

    assert cores[0].exitcode == -signal.SIGKILL
    assert "vLLM did not start within 0.95 s" in failure.reason
    assert "rollout.startupTimeoutSeconds (--startup-seconds)" in failure.reason
    assert not failure.refused


async def test_a_core_that_hangs_at_its_first_prompt_is_named(package, model_path):
    package.core.step = lambda: None
    async with served(package, model_path, startup_seconds=1) as (server, serving):
        assert "vLLM did not start within 0.95 s" in (await server.receive()).reason
        assert await serving == 1
        assert package.made[0].has_shut_down


async def test_a_start_in_time_is_left_alone(package, model_path):
    async with served(package, model_path, startup_seconds=5) as (server, _):
        assert isinstance(await server.receive(), EngineReady)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


async def test_a_vllm_that_dies_is_a_failure(package, model_path):
    async with served(package, model_path) as (server, serving):
        await server.receive()

        package.core.die()

        while isinstance(message := await server.receive(), StepReport):
            pass
        assert message == EngineFailed(reason="one of vLLM's processes has ended", refused=False)
        assert await serving == 1


async def test_a_server_that_reads_nothing_counts_as_gone_when_the_bound_is_reached(monkeypatch):
    monkeypatch.setattr(process, "MAX_UNSENT_BYTES", 2**20)
    message = EngineFailed(reason="a" * 2**16, refused=False)
    async with channel() as (engine, _):
        sent = 0
        with pytest.raises(ServerGoneError):
            while sent < 1000:
                engine.send(message)
                sent += 1

        # What the system's buffer takes comes on top.
        assert 16 <= sent < 100


async def test_a_server_that_reads_later_gets_everything_in_order(monkeypatch):
    monkeypatch.setattr(process, "MAX_UNSENT_BYTES", 2**21)
    async with channel() as (engine, server):
        for number in range(16):
            engine.send(EngineFailed(reason=f"{number} {'a' * 2**16}", refused=False))

        flushing = asyncio.create_task(engine.flush())
        found = [int((await server.receive()).reason.split()[0]) for _ in range(16)]

        await flushing
        assert found == list(range(16))


async def test_the_end_of_the_servers_socket_ends_the_engines_reading():
    async with channel() as (engine, server):
        await server.close()
        with pytest.raises(ServerGoneError):
            await asyncio.wait_for(engine.apply_all(None), 10)
