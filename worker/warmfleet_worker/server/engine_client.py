"""The engine as the server sees it: submit a sequence, take its tokens, give it back.

`EngineClient` is the protocol, `ProcessEngineClient` the client of an engine in a child process. No torch.
"""

import asyncio
import itertools
import os
import socket
import sys
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from warmfleet_contracts.errors import ContractError, WarmfleetError
from warmfleet_worker.engine.messages import (
    AbortSequence,
    AddSequence,
    ClearCache,
    Drain,
    EngineFailed,
    EngineReady,
    MessageFramer,
    PauseSequence,
    ResumeSequence,
    ServerMessage,
    StepReport,
    decode_engine_message,
    encode_message,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.server.sequence_handle import SequenceHandle
from warmfleet_worker.settings import EngineSettings

MAX_BACKLOG_BYTES: Final = 256 * 1024 * 1024
"""What the engine may leave unread before nothing more is submitted."""
_READ_BYTES: Final = 1024 * 1024
_SLEEPING_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""A kernel's threads sleep between parallel regions. Spinning, OpenMP's default, is a little faster on an
idle machine and tens of times slower as soon as something else wants one of the cores."""

ENGINE_MODULE: Final = "warmfleet_worker.engine_process"

log = structlog.get_logger("warmfleet.worker.engine")


class EngineGoneError(WarmfleetError):
    """The engine cannot take or finish sequences any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One prompt to continue."""

    prompt_token_ids: list[int]
    sampling: SamplingParameters
    salt: bytes = b""
    may_read_cache: bool = True
    priority: int = 0
    router_id: str = ""
    dispatch: int = 0


class EngineClient(Protocol):
    """What the server needs of an engine."""

    @property
    def ready(self) -> EngineReady | None:
        """What it said when it had loaded; None before."""
        ...

    @property
    def live_sequences(self) -> int:
        """Submitted and neither finished nor aborted."""
        ...

    def submit(self, request: SequenceRequest, wake: asyncio.Event) -> SequenceHandle:
        """Hand over one sequence; `wake` is set whenever its `SequenceHandle` has news.

        Raises:
            EngineGoneError: it is not there.
        """
        ...

    def clear_cache(self) -> None:
        """Forget every block that no live sequence holds."""
        ...

    def drain(self) -> None:
        """Report `draining` from now on."""
        ...


class EngineObserver(Protocol):
    """Who wants to know what the engine says, besides the readers of its sequences."""

    @property
    def position(self) -> str:
        """`epoch:seq` of the event stream, everything reported so far included."""
        ...

    def on_ready(self, ready: EngineReady) -> None: ...
    def on_report(self, report: StepReport) -> None: ...


class ProcessEngineClient:
    """An engine in a child process, over a socketpair.

    `module` is what the process runs, as `python -m`: ours, or another one with its arguments and messages.
    """

    def __init__(
        self, settings: EngineSettings, listener: EngineObserver, module: str = ENGINE_MODULE
    ) -> None:
        self._settings = settings
        self._module = module
        self._listener = listener
        self._ready: EngineReady | None = None
        self._handles: dict[int, SequenceHandle] = {}
        self._paused: set[int] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._killed = ""
        self._ids = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._gone = ""
        self._last_report_seconds = 0.0
        self.pid: int | None = None

    @property
    def ready(self) -> EngineReady | None:
        return self._ready

    @property
    def live_sequences(self) -> int:
        return len(self._handles)

    @property
    def working_sequences(self) -> int:
        """Live ones that are not paused: the engine must say something as long as there are any."""
        return len(self._handles) - len(self._paused)

    @property
    def last_report_seconds(self) -> float:
        """Event loop time of the engine's last word, or of when it last got something to do."""
        return self._last_report_seconds

    def submit(self, request: SequenceRequest, wake: asyncio.Event) -> SequenceHandle:
        if self._ready is None or self._gone:
            raise EngineGoneError(self._gone or "the engine is not ready yet")
        if self._writer is not None and self._writer.transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
            raise EngineGoneError("the engine does not keep up with what it is told")
        self._note_work()
        sequence_id = next(self._ids)
        self._send(
            AddSequence(
                sequence_id=sequence_id,
                prompt_token_ids=request.prompt_token_ids,
                salt=request.salt,
                sampling=request.sampling,
                use_prefix_cache=self._ready.prefix_caching,
                may_read_cache=request.may_read_cache,
                priority=request.priority,
                router_id=request.router_id,
                dispatch=request.dispatch,
            )
        )
        handle = SequenceHandle(sequence_id, wake, self)
        self._handles[sequence_id] = handle
        return handle

    def clear_cache(self) -> None:
        self._send(ClearCache())

    def drain(self) -> None:
        self._send(Drain())

    async def run(self) -> str:
        """Start the process and read what it says until it ends; returns why it ended.

        On cancellation the socket is closed, which ends the process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                "--fd",
                str(theirs.fileno()),
                "--settings",
                msgspec.json.encode(self._settings).decode(),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,  # stdout carries the server's own announcement only
                env=_SLEEPING_THREADS | dict(os.environ),
            )
        self._process = process
        self.pid = process.pid
        reader, self._writer = await asyncio.open_connection(sock=ours)
        reason = ""
        try:
            reason = await self._read(reader) or self._killed
        finally:
            self._writer.close()
            self._gone = reason or "the engine process ended"
            for handle in list(self._handles.values()):
                handle.fail("the engine is gone")
            self._handles.clear()
            self._paused.clear()
            # The reader of a dead process learns only that the socket closed; its status says why.
            status = await _exit_status(process)
            self._gone = reason or f"the engine process ended with {status}"
        return self._gone

    async def _read(self, reader: asyncio.StreamReader) -> str:
        framer = MessageFramer()
        while data := await reader.read(_READ_BYTES):
            try:
                for body in framer.feed(data):
                    match decode_engine_message(body):
                        case EngineReady() as ready:
                            self._ready = ready
                            log.info(
                                "engine ready",
                                pid=self.pid,
                                dtype=ready.dtype,
                                total_blocks=ready.total_blocks,
                                max_model_length_tokens=ready.max_model_length_tokens,
                                prefix_caching=ready.prefix_caching,
                            )
                            self._listener.on_ready(ready)
                        case StepReport() as report:
                            self._on_report(report)
                        case EngineFailed(reason=reason):
                            return f"the engine failed: {reason}"
            except ContractError as error:
                return str(error)
        return ""

    def _on_report(self, report: StepReport) -> None:
        self._last_report_seconds = asyncio.get_running_loop().time()
        # A prompt is matched before its step stores anything: the position is the one before this report.
        position = self._listener.position
        for update in report.updates:
            handle = self._handles.get(update.sequence_id)
            if handle is None:
                continue
            handle.apply(update, position)
            if handle.finished:
                self._handles.pop(update.sequence_id, None)
                self._paused.discard(update.sequence_id)
        self._listener.on_report(report)

    def abort_sequence(self, sequence_id: int) -> None:
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
        """End the process whatever it does; `run` then returns `reason`."""
        self._killed = reason
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._writer is not None:
            self._writer.transport.abort()  # one that cannot even be killed is not waited for

    def _note_work(self) -> None:
        """An idle engine owes its next word from now on."""
        if not self.working_sequences:
            self._last_report_seconds = asyncio.get_running_loop().time()

    def _send(self, message: ServerMessage) -> None:
        if self._writer is None or self._gone:
            return
        self._writer.write(encode_message(message))


async def _exit_status(process: asyncio.subprocess.Process) -> str:
    try:
        async with asyncio.timeout(10):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        try:
            async with asyncio.timeout(10):
                code = await process.wait()
        except TimeoutError:
            return "no exit code: it cannot be killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
