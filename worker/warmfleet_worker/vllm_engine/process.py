"""The engine process with vLLM: `python -m warmfleet_worker.vllm_engine.process --fd N --settings JSON`.

It runs in the interpreter that has vLLM, and starts vLLM's own processes. It ends when its server does, and
they end with it: by the kernel's parent-death signal.
"""

import asyncio
import hashlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog
import uvloop

from warmfleet_contracts.cache.blocks import (
    CacheIdentity,
    IdentityParts,
    cache_identity,
    prefix_caching_supported,
)
from warmfleet_contracts.errors import ModelError, WarmfleetError
from warmfleet_runtime.memory import memory_limit_bytes
from warmfleet_worker.engine.messages import (
    EngineFailed,
    EngineMessage,
    EngineReady,
    decode_server_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.engine_child import begin_engine, ends_with_parent
from warmfleet_worker.model_store.known_model import known_model, records_folder
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError, environment
from warmfleet_worker.vllm_engine.event_socket import EventSocket
from warmfleet_worker.vllm_engine.llm import VllmEngine, import_libraries
from warmfleet_worker.vllm_engine.loop import EngineLoop
from warmfleet_worker.vllm_engine.outputs import ModelFacts
from warmfleet_worker.vllm_engine.socket_folder import socket_folder
from warmfleet_worker.vllm_engine.start_failures import (
    FILE_VARIABLE,
    Sizes,
    StartBound,
    StartError,
    flags_naming,
    note_failures,
    noted_failures,
    start_error,
)
from warmfleet_worker.vllm_engine.versions import VllmVersionError

ENGINE_TYPE: Final = "VLLM"
MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Reports that the server has not read, beyond which this process ends: vLLM itself cannot be held back."""
_RECEIVE_BYTES: Final = 256 * 1024

log = structlog.get_logger("warmfleet.worker.vllm")


class ServerGoneError(Exception):
    """The other end of the socket is closed, or does not read."""


class ServerChannel:
    """The engine's end of the socket to its server, in an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: EngineMessage) -> None:
        """Queue one message; nothing of one that is refused.

        Raises:
            ServerGoneError: the server does not read.
            ContractError: the message is larger than the server takes.
        """
        encoded = encode_message(message)
        if self._writer.transport.get_write_buffer_size() + len(encoded) > MAX_UNSENT_BYTES:
            raise ServerGoneError
        self._writer.write(encoded)

    async def apply_all(self, loop: EngineLoop) -> None:
        """Hand the server's messages to `loop` until the server is gone.

        Raises:
            ServerGoneError: the server closed its end.
            ContractError: it sent a malformed message.
        """
        frames = message_reader()
        while data := await self._reader.read(_RECEIVE_BYTES):
            for body in frames.feed(data):
                loop.apply(decode_server_message(body))
        raise ServerGoneError

    async def flush(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


async def serve(connection: socket.socket, settings: EngineSettings) -> int:
    """Start vLLM and serve until the server is gone; 0 then, 1 when the engine failed."""
    channel = ServerChannel(*await asyncio.open_connection(sock=connection))
    try:
        await _compute(channel, settings)
    except (ServerGoneError, ConnectionError):
        return 0
    except Exception as error:  # noqa: BLE001 - the server reports the reason of any failure
        channel.send(_failure(error))
        await channel.flush()
        return 1
    finally:
        channel.close()
    return 0


def _failure(error: Exception) -> EngineFailed:
    match error:
        case ModuleNotFoundError(name="vllm" | "zmq"):
            reason = f"{sys.executable} has no vLLM ({error.name} is missing): run `make vllm`"
            return EngineFailed(reason=reason, refused=True)
        case StartError(refused=refused):
            return EngineFailed(reason=str(error), refused=refused)
        case WarmfleetError():
            refused = isinstance(error, UnfitSettingsError | VllmVersionError | ModelError)
            return EngineFailed(reason=str(error), refused=refused)
    log.error("vLLM failed", exc_info=error)
    return EngineFailed(reason=f"vLLM: {type(error).__name__}: {error}")


async def _compute(channel: ServerChannel, settings: EngineSettings) -> None:
    imports_at = time.monotonic()
    with ThreadPoolExecutor(1) as beside:  # hashing files needs another core than imports do
        known = beside.submit(known_model, Path(settings.model_path), records_folder())
        import_libraries()
        load_at = time.monotonic()
        manifest, verification = known.result()
    with socket_folder() as folder, EventSocket(folder) as events:
        failures = folder / "failures"
        os.environ[FILE_VARIABLE] = str(failures)
        bound = StartBound(settings.startup_seconds)
        try:
            with bound:
                llm = VllmEngine(settings, endpoint=events.endpoint, replay_endpoint=events.replay_endpoint)
        except Exception as error:
            log.warning("vLLM did not start", exc_info=error)
            if bound.error is not None:
                raise bound.error from error
            if isinstance(error, WarmfleetError):
                raise
            sizes = Sizes.of(settings, memory_limit_bytes())
            named = flags_naming(error, settings.extra_arguments)
            raise start_error(error, noted_failures(failures), sizes, named) from error
        try:
            facts = llm.facts
            ready = engine_ready(facts, settings, manifest.model_digest)
            loop = EngineLoop(
                llm,
                facts,
                CacheIdentity(ready.identity),
                send=channel.send,
                check=verification.raise_failure if verification else _nothing_to_check,
                prefix_caching=ready.prefix_caching,
            )

            async def converse() -> None:
                try:
                    async with asyncio.timeout(bound.seconds):
                        await loop.warm_up()
                except TimeoutError as error:
                    raise bound.over() from error
                channel.send(
                    msgspec.structs.replace(ready, imports_at_seconds=imports_at, load_at_seconds=load_at)
                )
                if verification is not None:
                    verification.start()
                loop.begin_reports()
                await channel.apply_all(loop)

            await loop.run(events, converse())
        finally:
            llm.shutdown()


def _nothing_to_check() -> None:
    """The model's files have been verified."""


def engine_ready(facts: ModelFacts, settings: EngineSettings, model_digest: str) -> EngineReady:
    """What the server is sent once vLLM has loaded the model."""
    identity = cache_identity(
        IdentityParts(
            model_digest=bytes.fromhex(model_digest),
            tokenizer_digest=settings.tokenizer_digest,
            chat_template_digest=settings.chat_template_digest,
            block_size_tokens=facts.block_size_tokens,
            window_tokens=facts.window_tokens,
            kv_dtype=facts.dtype,
            engine_type=_kind(facts, settings),
        )
    )
    return EngineReady(
        epoch=secrets.token_hex(8),
        identity=identity,
        block_size_tokens=facts.block_size_tokens,
        window_tokens=facts.window_tokens,
        total_blocks=facts.total_blocks,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        max_model_length_tokens=facts.max_model_length_tokens,
        max_batched_tokens=facts.max_batched_tokens,
        max_running_sequences=facts.max_running_sequences,
        dtype=facts.dtype,
        device=facts.device,
        end_token_ids=sorted(facts.end_token_ids),
        vocabulary_size=facts.vocabulary_size,
        prefix_caching=settings.prefix_caching and prefix_caching_supported(facts.window_tokens),
        own_metrics=True,
        model_digest=model_digest,
    )


def _kind(facts: ModelFacts, settings: EngineSettings) -> str:
    """What the bits of a block depend on besides: vLLM's version, its devices, its own flags."""
    special = (facts.vllm_version, str(settings.tensor_parallel_size), *settings.extra_arguments)
    return f"{ENGINE_TYPE} {hashlib.sha256(msgspec.json.encode(special)).hexdigest()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the server is gone; 0 then, 1 when the engine failed."""
    command = begin_engine("warmfleet_worker.vllm_engine.process", arguments)
    if command is None:
        return 0
    for name, value in environment(command.settings).items():
        os.environ.setdefault(name, value)
    # As in vLLM's own server: outputs come over sockets, and this process shares the cores with the steps.
    with (
        socket.socket(fileno=command.fd) as connection,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(serve(connection, command.settings))


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # At once: to take the libraries down takes seconds, in which the server would wait to start anew.
    os._exit(exit_code)
if __name__ == "__mp_main__":  # one of vLLM's own processes
    if not ends_with_parent():
        sys.exit(0)
    note_failures()
