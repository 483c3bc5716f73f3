"""The engine as the server uses it: submit a sequence, take its tokens, release it.

`EngineClient` is the protocol, `ProcessEngineClient` the client of an engine in a child process. No torch.
"""

import asyncio
import itertools
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec
import structlog

from warmfleet_contracts.errors import ContractError, WarmfleetError
from warmfleet_worker.engine.messages import (
    AbortSequence,
    AddSequences,
    ClearCache,
    Drain,
    EngineFailed,
    EngineMetrics,
    EngineReady,
    NewSequence,
    PauseSequence,
    ReadMetrics,
    ResumeSequence,
    ServerMessage,
    StepReport,
    decode_engine_message,
    encode_message,
    message_reader,
    packed_tokens,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine_start import EngineProcess
from warmfleet_worker.server.sequence_handle import SequenceHandle

MAX_BACKLOG_BYTES: Final = 256 * 1024 * 1024
"""Unread bytes in the engine's socket beyond which nothing more is submitted."""
METRICS_SECONDS: Final = 2.0
"""For an engine's answer with its metrics."""
_READ_BYTES: Final = 1024 * 1024
_EXIT_SECONDS: Final = 10
"""Between the end of its messages and that of the process, and once more after a kill."""

log = structlog.get_logger("warmfleet.worker.engine")


class EngineGoneError(WarmfleetError):
    """The engine cannot take or finish sequences any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One prompt to continue, with everything that the engine needs to know."""

    prompt_token_ids: list[int]
    """Requests that share the list object share its copy on the socket and in the engine."""
    sampling: SamplingParameters
    salt: bytes = b""
    may_read_cache: bool = True
    priority: int = 0
    is_idle: bool = False
    """No client waits for it."""
    unused_seconds: float | None = None
    """An idle one may evict blocks that were not used for longer; None: it evicts none."""
    router_id: str = ""
    dispatch: int = 0


class EngineClient(Protocol):
    """What the server needs of an engine; `ProcessEngineClient` in production.

    [handle] = engine.submit([request], wake)
    with handle:  # leaving the block aborts an unfinished sequence
        await wake.wait()
        update = handle.take()
    """

    @property
    def ready(self) -> EngineReady | None:
        """Its configuration; None until the model is loaded."""
        ...

    @property
    def live_sequences(self) -> int:
        """Submitted and neither finished nor aborted, without idle ones."""
        ...

    def submit(self, requests: Sequence[SequenceRequest], wake: asyncio.Event) -> list[SequenceHandle]:
        """Queue sequences; `wake` is set whenever one of their handles has an update.

        Raises:
            EngineGoneError: the engine is not ready, has ended, or does not keep up.
        """
        ...

    def clear_cache(self) -> None:
        """Forget every block without a holder."""
        ...

    def drain(self) -> None:
        """Report `draining` from now on."""
        ...

    async def read_metrics(self) -> bytes:
        """Metrics of an engine that has its own, as text; empty if it does not answer in time."""
        ...


class EngineObserver(Protocol):
    """Receives the engine's reports as a whole; the readers of its sequences receive their own updates."""

    @property
    def position(self) -> str:
        """`epoch:seq` of the event stream, including everything reported so far."""
        ...

    def on_ready(self, ready: EngineReady) -> None: ...
    def on_report(self, report: StepReport) -> None: ...


class ProcessEngineClient:
    """An engine in a child process, over a socketpair."""

    def __init__(self, engine: EngineProcess, observer: EngineObserver) -> None:
        self._engine = engine
        self._observer = observer
        self._ready: EngineReady | None = None
        self._handles: dict[int, SequenceHandle] = {}
        self._idle: set[int] = set()
        self._paused: set[int] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._killed = ""
        self._ids = itertools.count(1)
        self._gone = ""
        self._refused = False
        self._last_report_seconds = 0.0
        self._metrics: asyncio.Future[bytes] | None = None
        """Of the question for metrics that is not answered yet."""

    @property
    def ready(self) -> EngineReady | None:
        return self._ready

    @property
    def live_sequences(self) -> int:
        return len(self._handles) - len(self._idle)

    @property
    def refused(self) -> bool:
        """Whether the engine ended because of its settings; the end of `run` has the reason."""
        return self._refused

    @property
    def working_sequences(self) -> int:
        """Live ones that are not paused: while there are any, the engine must report steps."""
        return len(self._handles) - len(self._paused)

    @property
    def last_report_seconds(self) -> float:
        """Event loop time of the engine's last report of progress, or of when it last got work while idle."""
        return self._last_report_seconds

    def submit(self, requests: Sequence[SequenceRequest], wake: asyncio.Event) -> list[SequenceHandle]:
        if self._writer is None or self._ready is None or self._gone:
            raise EngineGoneError(self._gone or "the engine is not ready yet")
        if self._writer.transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
            raise EngineGoneError("the engine does not keep up with its requests")
        self._note_work()
        numbered = [(next(self._ids), request) for request in requests]
        for message in add_messages(numbered, use_prefix_cache=self._ready.prefix_caching):
            self._send(message)
        handles = [SequenceHandle(sequence_id, wake, self) for sequence_id, _ in numbered]
        self._handles.update((handle.sequence_id, handle) for handle in handles)
        self._idle.update(sequence_id for sequence_id, request in numbered if request.is_idle)
        return handles

    def clear_cache(self) -> None:
        self._send(ClearCache())

    def drain(self) -> None:
        self._send(Drain())

    async def read_metrics(self) -> bytes:
        if self._ready is None or not self._ready.own_metrics or self._gone:
            return b""
        if self._metrics is None:
            # All that ask meanwhile get its one answer.
            self._metrics = asyncio.get_running_loop().create_future()
            self._send(ReadMetrics())
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                return await asyncio.shield(self._metrics)
        except TimeoutError:
            return b""

    def _on_metrics(self, text: bytes) -> None:
        if self._metrics is not None:
            self._metrics.set_result(text)
            self._metrics = None

    async def run(self) -> str:
        """Read the messages of the process until it ends; returns why it ended.

        On cancellation the socket is closed, which ends the process.
        """
        reader, writer = await asyncio.open_connection(sock=self._engine.connection)
        self._writer = writer
        reason = ""
        try:
            reason = await self._read(reader, self._engine.process.pid) or self._killed
        finally:
            writer.close()
            self._gone = reason or "the engine process ended"
            self._on_metrics(b"")
            for handle in list(self._handles.values()):
                handle.fail("the engine is gone")
            self._handles.clear()
            self._idle.clear()
            self._paused.clear()
            # End of file does not show why the process ended; its exit status does.
            status = await _exit_status(self._engine.process)
            self._gone = reason or f"the engine process ended with {status}"
        return self._gone

    async def _read(self, reader: asyncio.StreamReader, pid: int) -> str:
        frames = message_reader()
        while data := await reader.read(_READ_BYTES):
            try:
                for body in frames.feed(data):
                    match decode_engine_message(body):
                        case EngineReady() as ready:
                            self._ready = ready
                            log.info(
                                "engine ready",
                                pid=pid,
                                dtype=ready.dtype,
                                total_blocks=ready.total_blocks,
                                max_model_length_tokens=ready.max_model_length_tokens,
                                prefix_caching=ready.prefix_caching,
                            )
                            self._observer.on_ready(ready)
                        case StepReport() as report:
                            self._on_report(report)
                        case EngineMetrics(text=text):
                            self._on_metrics(text)
                        case EngineFailed() as failed:
                            self._refused = failed.refused
                            return failed.reason if failed.refused else f"the engine failed: {failed.reason}"
            except ContractError as error:
                return str(error)
        return ""

    def _on_report(self, report: StepReport) -> None:
        if not report.no_progress:
            self._last_report_seconds = asyncio.get_running_loop().time()
        # A prompt is matched before its step stores anything: the position is the one before this report.
        position = self._observer.position
        for update in report.updates:
            handle = self._handles.get(update.sequence_id)
            if handle is None:
                continue
            handle.apply(update, position)
            if handle.finished:
                self._handles.pop(update.sequence_id, None)
                self._idle.discard(update.sequence_id)
                self._paused.discard(update.sequence_id)
        self._observer.on_report(report)

    def abort_sequence(self, sequence_id: int) -> None:
        self._idle.discard(sequence_id)
        self._paused.discard(sequence_id)
        if self._handles.pop(sequence_id, None) is not None:
            self._send(AbortSequence(sequence_id=sequence_id))

    def pause_sequence(self, sequence_id: int) -> None:
        if sequence_id in self._handles:
            self._paused.add(sequence_id)
            self._send(PauseSequence(sequence_id=sequence_id))

    def resume_sequence(self, sequence_id: int) -> None:
        if sequence_id in self._paused:
            self._note_work()
            self._paused.discard(sequence_id)
            self._send(ResumeSequence(sequence_id=sequence_id))

    def kill(self, reason: str) -> None:
        """Kill the process; `run` then returns `reason`."""
        self._killed = reason
        self._engine.process.kill()
        if self._writer is not None:
            self._writer.transport.abort()  # do not wait for a process that cannot be killed

    def _note_work(self) -> None:
        """An idle engine's report is due from now on."""
        if not self.working_sequences:
            self._last_report_seconds = asyncio.get_running_loop().time()

    def _send(self, message: ServerMessage) -> None:
        if self._writer is None or self._gone:
            return
        self._writer.write(encode_message(message))


def add_messages(
    numbered: Iterable[tuple[int, SequenceRequest]], *, use_prefix_cache: bool
) -> list[AddSequences]:
    """Messages that submit requests under their ids: one for all that share a prompt and differ in seeds."""
    groups: list[tuple[SequenceRequest, list[NewSequence]]] = []
    latest: dict[int, tuple[SequenceRequest, list[NewSequence]]] = {}  # by the list object of the prompt
    for sequence_id, request in numbered:
        group = latest.get(id(request.prompt_token_ids))
        if group is None or not _same_but_seed(group[0], request):
            group = (request, [])
            latest[id(request.prompt_token_ids)] = group
            groups.append(group)
        group[1].append(NewSequence(sequence_id, request.sampling.seed))
    return [
        AddSequences(
            sequences=sequences,
            prompt=packed_tokens(request.prompt_token_ids),
            salt=request.salt,
            sampling=request.sampling,
            use_prefix_cache=use_prefix_cache,
            may_read_cache=request.may_read_cache,
            priority=request.priority,
            is_idle=request.is_idle,
            unused_seconds=request.unused_seconds,
            router_id=request.router_id,
            dispatch=request.dispatch,
        )
        for request, sequences in groups
    ]


def _same_but_seed(one: SequenceRequest, other: SequenceRequest) -> bool:
    sampling = msgspec.structs.replace(one.sampling, seed=other.sampling.seed)
    return replace(one, sampling=sampling) == other  # O(1) in the prompt, which is the same object


async def _exit_status(process: "subprocess.Popen[bytes]") -> str:
    try:
        code = await asyncio.to_thread(process.wait, _EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            code = await asyncio.to_thread(process.wait, _EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "no exit code: it cannot be killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
