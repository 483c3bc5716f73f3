"""Why vLLM does not start: the cause, which its own processes log and do not send, with sizes of memory.

`StartBound` ends a start that takes too long, which has no cause of its own.
"""

import logging
import multiprocessing
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError

FILE_VARIABLE: Final = "WARMFLEET_VLLM_FAILURES"
"""Path of the file in which vLLM's processes note what they log as failures."""
_MAX_FILE_BYTES: Final = 64 * 1024
_MAX_TEXT_CHARS: Final = 1000
_START_RATIO: Final = 0.95
"""Of the time in which a worker may load: at its end the pod's startup probe ends it, without a reason."""
_GIB: Final = 2**30
_MIB: Final = 2**20
_OF_MEMORY: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")
_QUOTED: Final = re.compile(r"'([^']+)'")
_KILLED: Final = (": -9", "proc(s): {}")
"""Exit codes in vLLM's own message: by the kernel, where memory is short. Sometimes vLLM looks before it is
known; a process that ends by itself has logged why."""


class StartError(WarmfleetError):
    """vLLM did not start; the text has the cause."""

    def __init__(self, text: str, *, refused: bool) -> None:
        """`refused`: by the settings; another start fails alike."""
        super().__init__(text)
        self.refused = refused


class StartBound:
    """Ends vLLM's processes when its start takes too long: vLLM waits for them for ever.

    with StartBound(settings.startup_seconds) as bound:
        ...  # raises when its processes are gone; `bound.error` is the reason then
    """

    def __init__(self, startup_seconds: int) -> None:
        self.error: StartError | None = None
        """Set when the time is over."""
        self.seconds = startup_seconds * _START_RATIO
        self._timer = threading.Timer(self.seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()

    def over(self) -> StartError:
        """The reason, once the time is over."""
        return StartError(
            f"vLLM did not start within {self.seconds:g} s: its processes hang or load for longer; its log "
            "is above. Give it more time by rollout.startupTimeoutSeconds (--startup-seconds)",
            refused=False,
        )

    def _end(self) -> None:
        self.error = self.over()
        for process in multiprocessing.active_children():
            process.kill()


class Failure(msgspec.Struct, frozen=True):
    """An exception that one of vLLM's processes logged."""

    kind: str
    text: str
    is_refusal: bool
    """It is about a value, as vLLM's own checks are."""

    @property
    def is_of_memory(self) -> bool:
        return self.kind in {"OutOfMemoryError", "MemoryError"} or any(
            words in self.text.lower() for words in _OF_MEMORY
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a worker asks for in memory, and what there is."""

    weights_bytes: int
    """Of the model's files."""
    kv_cache_bytes: int
    device_memory_percent: int
    limit_bytes: int
    """Of this process, on the machine or in its container."""

    @classmethod
    def of(cls, settings: EngineSettings, limit_bytes: int) -> "Sizes":
        files = Path(settings.model_path).glob("*.safetensors")
        kv_cache_bytes = 0 if settings.device_memory_percent else settings.kv_cache_bytes
        return cls(
            sum(file.stat().st_size for file in files),
            kv_cache_bytes,
            settings.device_memory_percent,
            limit_bytes,
        )

    def __str__(self) -> str:
        cache = (
            f"{self.device_memory_percent} % of the device are for weights and KV cache"
            if self.device_memory_percent
            else f"the KV cache takes {_size(self.kv_cache_bytes)}"
        )
        return (
            f"the model's files have {_size(self.weights_bytes)}, {cache}, and the processes of this worker "
            f"may use {_size(self.limit_bytes)} of the machine's memory"
        )


def require_memory(sizes: Sizes) -> None:
    """Refuse a start on a CPU where weights and KV cache do not fit: the kernel would end it by SIGKILL.

    Raises:
        UnfitSettingsError: they do not.
    """
    if sizes.weights_bytes + sizes.kv_cache_bytes > sizes.limit_bytes:
        raise UnfitSettingsError(
            f"vLLM would run out of memory: {sizes}; use a smaller KV cache or model, or raise the limit"
        )


def note_failures(environment: Mapping[str, str] = os.environ) -> None:
    """In one of vLLM's processes: append each exception that it logs to the file that a variable names."""
    path = environment.get(FILE_VARIABLE)
    if not path:
        return
    make = logging.getLogRecordFactory()

    def noting(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        if isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], Exception):
            _append(Path(path), record.exc_info[1])
        return record

    # vLLM configures handlers more than once, and keeps the factory.
    logging.setLogRecordFactory(noting)


def noted_failures(path: Path) -> list[Failure]:
    """What vLLM's processes noted, in order; none without a file."""
    found = []
    with suppress(OSError), path.open("rb") as file:
        for line in file.read(_MAX_FILE_BYTES).splitlines():
            with suppress(*UNDECODABLE):
                found.append(msgspec.json.decode(line, type=Failure))
    return found


def flags_naming(error: Exception, words: Sequence[str]) -> str:
    """Those of a user's `words` for vLLM whose value `error` quotes, such as a module that there is not."""
    quoted = [name for name in _QUOTED.findall(str(error)) if len(name) > 1]
    found = []
    for flag, value in zip(("", *words), words, strict=False):
        if not any(name in value for name in quoted):
            continue
        found.append(f"{flag} {value}" if flag.startswith("--") and not value.startswith("--") else value)
    return ", ".join(found)


def start_error(error: Exception, failures: Sequence[Failure], sizes: Sizes, flags: str = "") -> StartError:
    """`error`, which vLLM raised in our process, with the cause in its own processes.

    `flags`: those that the error is about, as far as it is known.
    """
    cause = _cause(failures)
    if cause is None:
        if any(code in str(error) for code in _KILLED):
            return StartError(
                f"one of vLLM's processes was killed at the start, most likely for memory: {sizes}",
                refused=False,
            )
        cause = _failure(error)
    if cause.is_of_memory:
        return StartError(f"vLLM ran out of memory at the start: {cause.text}; {sizes}", refused=True)
    if cause.is_refusal:
        more = f"; {sizes}" if "memory" in cause.text.lower() else ""
        more += f"; engine.extraArgs has {flags}" if flags else ""
        return StartError(f"vLLM refuses the settings: {cause.text}{more}", refused=True)
    return StartError(f"vLLM did not start: {cause.kind}: {cause.text}", refused=False)


def _cause(failures: Iterable[Failure]) -> Failure | None:
    """Of several the one of memory, which the others follow from; else the first."""
    found = list(failures)
    return next((failure for failure in found if failure.is_of_memory), found[0] if found else None)


def _append(path: Path, error: Exception) -> None:
    with suppress(OSError), path.open("ab") as file:
        if file.tell() < _MAX_FILE_BYTES:
            file.write(msgspec.json.encode(_failure(error)) + b"\n")


def _failure(error: Exception) -> Failure:
    text = " ".join(str(error).split())[:_MAX_TEXT_CHARS]
    return Failure(type(error).__name__, text, _is_refusal(error))


def _is_refusal(error: Exception) -> bool:
    """Whether it is about a value, such as the name of a module or class; another start fails alike."""
    if isinstance(error, ValueError | ImportError | AttributeError):
        return True
    # Of vLLM, which this module does not import.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return "VLLMError" in kinds and "VLLMServerError" not in kinds


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"
