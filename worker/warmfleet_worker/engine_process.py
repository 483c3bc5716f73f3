"""The engine process: owns the model and the KV cache, exchanges messages with its server over one socket.

    python -m warmfleet_worker.engine_process --fd N --settings JSON

One loop: apply the server's messages, compute a step, send one `StepReport` per step. Without work
it sleeps on the socket. It ends when the server does: on end of file,
and by the kernel's parent-death signal.
"""

import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmfleet_runtime.memory import TERMINAL_LIBRARIES, importing

with importing(without=TERMINAL_LIBRARIES):
    import msgspec
    import structlog

    from warmfleet_contracts.cache.blocks import IdentityParts, cache_identity
    from warmfleet_contracts.cache.kv_events import IDLE_HEARTBEAT_SECONDS
    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_worker.engine.engine import Engine, HitsNotVerifiable
    from warmfleet_worker.engine.messages import (
        AbortSequence,
        AddSequences,
        ClearCache,
        Drain,
        EngineFailed,
        EngineMessage,
        EngineReady,
        PauseSequence,
        ReadMetrics,
        ResumeSequence,
        ServerMessage,
        StepReport,
        decode_server_message,
        encode_message,
        message_reader,
    )
    from warmfleet_worker.engine.scheduler import SchedulerSettings
    from warmfleet_worker.engine.step_time import TARGET_STEP_SECONDS
    from warmfleet_worker.engine_child import begin_engine
    from warmfleet_worker.model_store.known_model import known_model, records_folder
    from warmfleet_worker.pytorch import TorchNotInstalled
    from warmfleet_worker.roofline.engine_roofline import EngineRoofline
    from warmfleet_worker.runner.memory_budget import NotEnoughMemory
    from warmfleet_worker.settings import EngineSettings

_RECEIVE_BYTES: Final = 256 * 1024
STEP_RECEIVE_BYTES: Final = 1024 * 1024
"""Received between two steps, rounded up to a read: live sequences do not wait for many long prompts."""
_STALLED_POLL_SECONDS: Final = 0.010
"""Pause after a step that could schedule nothing, such as one that waits for another sequence's block."""

_REFUSALS: Final = (NotEnoughMemory, HitsNotVerifiable, TorchNotInstalled)
"""Errors of settings or of the image: another start fails alike."""

log = structlog.get_logger("warmfleet.worker.engine")


class ServerGoneError(Exception):
    """The other end of the socket is closed."""


class ServerChannel:
    """The engine's end of the socket to its server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = message_reader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: EngineMessage) -> None:
        """Send one message; blocks while the socket's buffer is full.

        Raises:
            ServerGoneError: the server closed its end.
        """
        try:
            self._connection.sendall(encode_message(message))
        except OSError as error:
            raise ServerGoneError from error

    def receive(self, timeout_seconds: float) -> list[ServerMessage]:
        """The messages that have arrived; waits for at most `timeout_seconds` if there are none.

        After `STEP_RECEIVE_BYTES` the rest stays in the socket for the next call.

        Raises:
            ServerGoneError: the server closed its end.
            ContractError: it sent a malformed message.
        """
        messages: list[ServerMessage] = []
        timeout_ms = int(timeout_seconds * 1000)
        received_bytes = 0
        while received_bytes < STEP_RECEIVE_BYTES and self._poll.poll(timeout_ms):
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise ServerGoneError from error
            if not data:
                raise ServerGoneError
            received_bytes += len(data)
            messages += map(decode_server_message, self._frames.feed(data))
            timeout_ms = 0
        return messages


def serve(
    engine: Engine,
    channel: ServerChannel,
    check: Callable[[], None] = lambda: None,
    roofline: EngineRoofline | None = None,
) -> None:
    """Step `engine` until the server is gone, or `check`, which is called before each step, raises."""
    stalled = False
    while True:
        if engine.has_work:
            messages = channel.receive(_STALLED_POLL_SECONDS if stalled else 0)
        else:
            messages = idle_messages(channel, roofline)
        check()
        apply_messages(engine, messages)
        report = step(engine, channel) if engine.has_work else engine.report()
        channel.send(
            msgspec.structs.replace(
                report,
                max_batched_tokens=engine.max_batched_tokens,
                decode_roofline_ratio=roofline.ratio("decode") if roofline else 0.0,
                prefill_roofline_ratio=roofline.ratio("prefill") if roofline else 0.0,
            )
        )
        stalled = report.scheduled_tokens == 0


def step(engine: Engine, channel: ServerChannel) -> StepReport:
    """Compute a step; meanwhile take the messages that have arrived since it was scheduled."""
    begun = engine.begin()
    try:
        apply_messages(engine, channel.receive(0))
    finally:  # also if the server is gone: what the runner uses outlives the step
        report = engine.finish(begun)
    return report


def idle_messages(channel: ServerChannel, roofline: EngineRoofline | None) -> list[ServerMessage]:
    """The next messages; until they come the machine's limits are measured, where it is time to.

    Empty after the time of a heartbeat.
    """
    heartbeat_at = time.monotonic() + IDLE_HEARTBEAT_SECONDS
    while roofline is not None and roofline.advance():
        if messages := channel.receive(0):
            roofline.interrupt()
            return messages
        if time.monotonic() > heartbeat_at:
            return []  # the measurement goes on after it
    messages = channel.receive(IDLE_HEARTBEAT_SECONDS)
    if messages and roofline is not None:
        roofline.interrupt()
    return messages


def apply_messages(engine: Engine, messages: Iterable[ServerMessage]) -> None:
    for message in messages:
        match message:
            case AddSequences():
                engine.add(message)
            case AbortSequence():
                engine.abort(message.sequence_id)
            case PauseSequence():
                engine.pause(message.sequence_id)
            case ResumeSequence():
                engine.resume(message.sequence_id)
            case ClearCache():
                engine.clear_cache()
            case Drain():
                engine.drain()
            case ReadMetrics():
                pass  # it has none of its own: all that it measures is in its reports


def import_libraries(settings: EngineSettings) -> None:
    """Import what computes; only the process with the model needs it, and torch only where it computes."""
    with importing():
        from warmfleet_worker.runner.runner import import_libraries as import_runner  # noqa: PLC0415

    import_runner(settings.cpu_kernels, settings.dtype)


def build_engine(
    settings: EngineSettings, model_digest: str
) -> tuple[Engine, EngineReady, EngineRoofline | None]:
    """Load the model, allocate the KV arena. A GPU's limits are not measured: None.

    Raises:
        ModelError: the files are missing, damaged or not supported.
        HitsNotVerifiable: hits are to be verified, and equal tokens do not always give equal bits here.
        TorchNotInstalled: PyTorch would have to compute, and is not there.
    """
    from warmfleet_worker.model.cost import model_cost  # noqa: PLC0415
    from warmfleet_worker.runner.runner import load_runner  # noqa: PLC0415
    from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES, RunnerSettings  # noqa: PLC0415

    runner = load_runner(
        Path(settings.model_path),
        RunnerSettings(
            dtype=settings.dtype,
            weight_quantization=settings.weight_quantization,
            kv_cache_bytes=settings.kv_cache_bytes,
            device_memory_percent=settings.device_memory_percent,
            block_size_tokens=settings.block_size_tokens,
            max_model_length_tokens=settings.max_model_length_tokens,
            threads=settings.threads,
            cpu_kernels=settings.cpu_kernels,
        ),
    )
    window_tokens = runner.model.window_tokens
    identity = cache_identity(
        IdentityParts(
            model_digest=bytes.fromhex(model_digest),
            tokenizer_digest=settings.tokenizer_digest,
            chat_template_digest=settings.chat_template_digest,
            block_size_tokens=settings.block_size_tokens,
            window_tokens=window_tokens,
            kv_dtype=runner.dtype_name,
            kernels=runner.bits,
        )
    )
    epoch = secrets.token_hex(8)
    roofline = None
    if runner.device_name == "cpu":
        element_bytes = ELEMENT_BYTES[runner.dtype_name]
        roofline = EngineRoofline(model_cost(runner.model, element_bytes, settings.weight_quantization))
    engine = Engine(
        runner,
        identity,
        epoch,
        settings.block_size_tokens,
        window_tokens,
        SchedulerSettings(
            max_running_sequences=settings.max_running_sequences,
            max_batched_tokens=settings.max_batched_tokens,
            max_model_length_tokens=runner.max_model_length_tokens,
            prefix_caching=settings.prefix_caching,
        ),
        target_step_seconds=settings.target_step_milliseconds / 1000 or TARGET_STEP_SECONDS,
        vocabulary_size=runner.model.vocab_size,
        verify_hits_one_in=settings.verify_hits_one_in,
        on_step=roofline.observe if roofline else lambda _shape, _seconds: None,
    )
    ready = EngineReady(
        epoch=epoch,
        identity=identity,
        block_size_tokens=settings.block_size_tokens,
        window_tokens=window_tokens,
        total_blocks=runner.total_blocks,
        kv_bytes_per_token=runner.kv_bytes_per_token,
        max_model_length_tokens=engine.max_model_length_tokens,
        max_batched_tokens=settings.max_batched_tokens,
        max_running_sequences=settings.max_running_sequences,
        dtype=runner.dtype_name,
        device=runner.device_name,
        kernels=runner.kernels,
        exact=runner.exact,
        end_token_ids=sorted(runner.model.end_token_ids),
        vocabulary_size=runner.model.vocab_size,
        prefix_caching=engine.prefix_caching,
        model_digest=model_digest,
    )
    return engine, ready, roofline


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the server is gone; 0 then, 1 when the engine failed."""
    imports_at = time.monotonic()
    command = begin_engine("warmfleet_worker.engine_process", arguments)
    if command is None:
        return 0
    settings = command.settings
    with socket.socket(fileno=command.fd) as connection:
        channel = ServerChannel(connection)
        try:
            with ThreadPoolExecutor(1) as beside:  # hashing files needs another core than imports do
                known = beside.submit(known_model, Path(settings.model_path), records_folder())
                import_libraries(settings)
                load_at = time.monotonic()
                manifest, verification = known.result()
            engine, ready, roofline = build_engine(settings, manifest.model_digest)
            channel.send(
                msgspec.structs.replace(ready, imports_at_seconds=imports_at, load_at_seconds=load_at)
            )
            if verification is None:
                serve(engine, channel, roofline=roofline)
            else:
                verification.start()
                serve(engine, channel, verification.raise_failure, roofline)
        except ServerGoneError:
            return 0
        except Exception as error:  # noqa: BLE001 - the server reports the reason of any failure
            _report_failure(channel, error)
            return 1
    return 0


def _report_failure(channel: ServerChannel, error: Exception) -> None:
    if isinstance(error, WarmfleetError):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}"
        log.error("the engine failed", exc_info=error)
    with suppress(ServerGoneError):
        channel.send(EngineFailed(reason=reason, refused=isinstance(error, _REFUSALS)))


if __name__ == "__main__":
    sys.exit(main())
