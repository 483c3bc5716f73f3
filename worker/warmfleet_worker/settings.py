"""Settings of a worker: flags, and the token from the environment.

On one machine the token is given (`WARMFLEET_WORKER_TOKEN`). In a cluster it is derived from the key of the
namespace (`WARMFLEET_NAMESPACE_KEY`) and the pod's uid, so that no pod's token is stored.
"""

import argparse
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ROUTERS
from warmfleet_contracts.cache.worker_tokens import secret_from_hex, worker_token
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.names import NAMESPACE_KEY_VARIABLE, POD_UID_VARIABLE, WORKER_TOKEN_VARIABLE
from warmfleet_contracts.resources.fetch_outcome import TERMINATION_MESSAGE_PATH
from warmfleet_runtime.http.connections import MAX_CONNECTIONS
from warmfleet_runtime.http.listener import is_loopback

Dtype = Literal["Auto", "Float32", "BFloat16", "Float16", "Float64"]
EngineType = Literal["Warmfleet", "VLLM"]
CpuKernels = Literal["Auto", "Torch", "AVX2", "AVX512", "AVX512BF16", "AMXBF16"]
"""Auto: the native step at the best level that the processor runs and the system permits, else PyTorch."""
WeightQuantization = Literal["None", "Int8"]
BLOCK_SIZES: Final = (16, 32, 64, 128)
MAX_EXTRA_ARGUMENTS: Final = 64
MAX_EXTRA_ARGUMENT_CHARS: Final = 512
MAX_DEVICE_MEMORY_PERCENT: Final = 95
"""The rest is for activations."""
_SHARE: Final = re.compile(r"0|1/(?P<one_in>[1-9][0-9]{0,8})", re.ASCII)


class SettingsError(WarmfleetError):
    """A flag or a variable is wrong; the text names it."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the server passes to its engine process."""

    model_path: str
    dtype: Dtype = "Auto"
    weight_quantization: WeightQuantization = "None"
    """How weights are kept in memory; our own engine on a CPU only."""
    kv_cache_bytes: int = 256 * 1024 * 1024
    """Size of the one KV arena, allocated at the start."""
    device_memory_percent: int = 0
    """Instead: so much of the device's memory for weights and KV together; 0 = `kv_cache_bytes` counts."""
    block_size_tokens: int = 16
    """Tokens per block; part of the cache identity."""
    max_model_length_tokens: int = 0
    """Prompt and output together; 0: what model and KV cache allow. Above that our own engine takes what they
    allow, and vLLM does not start."""
    max_running_sequences: int = 64
    max_batched_tokens: int = 0
    """Most tokens per engine step; 0 lets the engine choose from its measured speed."""
    target_step_milliseconds: int = 0
    """How long a step takes that computes prompts beside answers; 0: 100 ms. Our own engine only."""
    threads: int = 0
    """CPU threads of the engine; 0 means all cores."""
    cpu_kernels: CpuKernels = "Auto"
    """What computes on a CPU; our own engine only."""
    prefix_caching: bool = True
    verify_hits_one_in: int = 0
    """Every n-th prefix-cache hit is computed again and compared; 0: none."""
    tensor_parallel_size: int = 1
    """Devices that compute together; vLLM only."""
    served_name: str = ""
    """The model's name in the engine's own metrics."""
    startup_seconds: int = 1800
    """How long the worker may load; vLLM only, which would wait for its processes for ever."""
    extra_arguments: tuple[str, ...] = ()
    """vLLM's own flags, one word each."""
    tokenizer_digest: bytes = b""
    chat_template_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """All settings of one worker process."""

    engine: EngineSettings
    served_names: tuple[str, ...]
    engine_type: EngineType = "Warmfleet"
    """Which engine process the server starts."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose; the line on stdout has the number."""
    uid: str = ""
    token: bytes = field(default=b"", repr=False)
    """Bearer token that callers must present; empty: none is required."""
    max_live_sequences: int = 1024
    """Sequences waiting or running; the next one is answered 429."""
    max_connections: int = MAX_CONNECTIONS
    """Open client connections; beyond it the one that has waited longest for a request is closed."""
    max_subscribers: int = MAX_REPORTED_ROUTERS
    """Event streams open at once: one for each router, those that drain included."""
    prewarm_seconds: float = 10.0
    """How long routers may have prefixes computed before it is ready; 0: it waits for none."""
    drain_seconds: float = 300.0
    """How long live answers may go on after SIGTERM."""
    write_seconds: float = 60.0
    """How long one write to a client may take before the request is aborted."""
    ping_seconds: float = 10.0
    """A stream without output for this long sends `: ping`."""
    stall_seconds: float = 60.0
    """An engine that has work and reports no step for this long fails liveness; after twice as long it is
    killed, and the worker ends."""
    termination_message: Path = Path(TERMINATION_MESSAGE_PATH)
    """Gets why the worker ended, where the file exists: in a pod."""

    @property
    def model_path(self) -> Path:
        return Path(self.engine.model_path)


def parse_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> WorkerSettings:
    """Settings from the command line; exits with a usage error on a wrong flag."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _settings(given, environment)
    except WarmfleetError as error:
        parser.error(str(error))


def _settings(given: argparse.Namespace, environment: Mapping[str, str]) -> WorkerSettings:
    uid = given.uid or environment.get(POD_UID_VARIABLE, "")
    token = _token(uid, environment)
    if not (token or is_loopback(given.host) or given.allow_anonymous):
        raise SettingsError(
            f"--host {given.host}: callers without a token are served on loopback only; "
            f"${NAMESPACE_KEY_VARIABLE} or ${WORKER_TOKEN_VARIABLE} asks for one, "
            "--allow-anonymous serves callers without one"
        )
    served_names = tuple(given.served_name or [given.model.resolve().name])
    extra_arguments = tuple(given.engine_argument or ())
    _check_engine_flags(given, extra_arguments)
    return WorkerSettings(
        engine=EngineSettings(
            model_path=str(given.model.resolve()),
            dtype=given.dtype,
            weight_quantization=given.weight_quantization,
            kv_cache_bytes=given.kv_cache_bytes,
            device_memory_percent=given.device_memory_percent,
            block_size_tokens=given.block_size_tokens,
            max_model_length_tokens=given.max_model_length_tokens,
            max_running_sequences=given.max_running_sequences,
            max_batched_tokens=given.max_batched_tokens,
            target_step_milliseconds=given.target_step_milliseconds,
            threads=given.threads,
            cpu_kernels=given.cpu_kernels,
            prefix_caching=not given.no_prefix_caching,
            verify_hits_one_in=given.verify_hits,
            tensor_parallel_size=given.tensor_parallel_size,
            served_name=served_names[0],
            startup_seconds=given.startup_seconds,
            extra_arguments=extra_arguments,
        ),
        engine_type=given.engine_type,
        served_names=served_names,
        host=given.host,
        port=given.port,
        uid=uid or f"{socket.gethostname()}-{os.getpid()}",
        token=token,
        max_live_sequences=given.max_live_sequences,
        max_connections=given.max_connections,
        max_subscribers=given.max_subscribers,
        prewarm_seconds=given.prewarm_seconds,
        drain_seconds=given.drain_seconds,
        write_seconds=given.write_seconds,
        ping_seconds=given.ping_seconds,
        stall_seconds=given.stall_seconds,
        termination_message=given.termination_message,
    )


def _check_engine_flags(given: argparse.Namespace, extra_arguments: tuple[str, ...]) -> None:
    """Refuse flags that the chosen engine does not have, and those that contradict each other."""
    if given.engine_type == "Warmfleet":
        if given.tensor_parallel_size > 1:
            raise SettingsError("--tensor-parallel-size: the engine Warmfleet computes on one device")
        if extra_arguments:
            raise SettingsError("--engine-argument: arguments are vLLM's, and --engine-type is Warmfleet")
    elif given.weight_quantization != "None":
        raise SettingsError("--weight-quantization: vLLM's own is --quantization in --engine-argument")
    elif given.verify_hits:
        raise SettingsError("--verify-hits: blocks of the engine VLLM are not read here")
    elif given.target_step_milliseconds:
        raise SettingsError("--target-step-milliseconds: vLLM's steps have no target time")
    if given.target_step_milliseconds and given.max_batched_tokens:
        raise SettingsError(
            "--target-step-milliseconds: --max-batched-tokens sets how much a step computes, "
            "however long that takes"
        )
    if given.verify_hits and given.no_prefix_caching:
        raise SettingsError("--verify-hits: with --no-prefix-caching there are no hits")
    if len(extra_arguments) > MAX_EXTRA_ARGUMENTS:
        raise SettingsError(f"--engine-argument: {len(extra_arguments)} of at most {MAX_EXTRA_ARGUMENTS}")


def _token(uid: str, environment: Mapping[str, str]) -> bytes:
    """The token that callers must present; empty if the environment has none."""
    given, key = environment.get(WORKER_TOKEN_VARIABLE, ""), environment.get(NAMESPACE_KEY_VARIABLE, "")
    if given and key:
        raise SettingsError(f"${WORKER_TOKEN_VARIABLE} and ${NAMESPACE_KEY_VARIABLE}: give one of them")
    if not key:
        return given.encode()
    if not uid:
        raise SettingsError(f"${NAMESPACE_KEY_VARIABLE}: needs the pod's uid in --uid or ${POD_UID_VARIABLE}")
    return worker_token(secret_from_hex(key, NAMESPACE_KEY_VARIABLE), uid)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmfleet_worker",
        description="Serve one model over an OpenAI-compatible API.",
        epilog=f"The bearer token that callers must present comes from ${WORKER_TOKEN_VARIABLE}, "
        f"or is derived from ${NAMESPACE_KEY_VARIABLE} and the pod's uid.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder with the model in Hugging Face layout")
    add("--engine-type", choices=get_args(EngineType), default="Warmfleet", help="which engine computes")
    add("--served-name", action="append", help="name clients use (repeatable; default: the folder's)")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=_at_least(0), default=8000, help="port to listen on; 0 chooses a free one")
    add("--allow-anonymous", action="store_true", help="serve callers without a token beyond loopback")
    add("--uid", default="", help=f"identity of this process in the fleet (default: ${POD_UID_VARIABLE})")
    kv_memory = parser.add_mutually_exclusive_group()
    kv_memory.add_argument(
        "--kv-cache-bytes", type=_at_least(1), default=256 * 1024 * 1024, help="size of the KV cache"
    )
    kv_memory.add_argument(
        "--device-memory-percent",
        type=_percent,
        default=0,
        help="of the device's memory for weights and KV cache together, 1..95; 0: by --kv-cache-bytes",
    )
    add("--block-size-tokens", type=int, choices=BLOCK_SIZES, default=16, help="tokens per KV block")
    add("--dtype", choices=get_args(Dtype), default="Auto", help="type of weights and KV")
    add(
        "--max-model-length-tokens",
        type=_at_least(2, or_zero=True),
        default=0,
        help="prompt and output together; 0: the model's own limit",
    )
    add("--max-running-sequences", type=_at_least(1), default=64, help="sequences computed in one step")
    add(
        "--max-batched-tokens", type=_at_least(0), default=0, help="tokens computed in one step; 0: automatic"
    )
    add(
        "--target-step-milliseconds",
        type=_at_least(10, or_zero=True),
        default=0,
        help="how long a step takes that computes prompts beside answers; 0: 100",
    )
    add(
        "--weight-quantization",
        choices=get_args(WeightQuantization),
        default="None",
        help="how weights are kept in memory: as dtype, or in 8 bits with a scale for each 32",
    )
    add("--threads", type=_at_least(0), default=0, help="CPU threads of the engine; 0: all cores")
    add(
        "--verify-hits",
        type=_share,
        default="0",
        metavar="1/N",
        help="compute every N-th prefix-cache hit again when idle, and compare the bytes; 0: none",
    )
    add(
        "--cpu-kernels",
        choices=get_args(CpuKernels),
        default="Auto",
        help="what computes on a CPU: the native step at a level, or PyTorch; Auto: the best that runs",
    )
    add("--no-prefix-caching", action="store_true", help="compute every prompt from its first token")
    add(
        "--tensor-parallel-size",
        type=_at_least(1),
        default=1,
        help="devices that compute together; vLLM only",
    )
    add("--engine-argument", type=_word, action="append", help="one word of vLLM's own flags (repeatable)")
    add(
        "--max-live-sequences",
        type=_at_least(1),
        default=1024,
        help="waiting and running; more are answered 429",
    )
    add("--max-connections", type=_at_least(1), default=MAX_CONNECTIONS, help="open client connections")
    add(
        "--max-subscribers",
        type=_at_least(1),
        default=MAX_REPORTED_ROUTERS,
        help="event streams open at once, one for each router",
    )
    add(
        "--prewarm-seconds",
        type=_seconds_or_none,
        default=10.0,
        help="time for routers to have prefixes computed before it is ready, two seconds where none comes; "
        "0: it waits for none",
    )
    add(
        "--startup-seconds",
        type=_at_least(1),
        default=1800,
        help="time to load with --engine-type VLLM; then its processes are ended, and the worker with them",
    )
    add("--drain-seconds", type=float, default=300.0, help="time for live answers after SIGTERM")
    add("--write-seconds", type=float, default=60.0, help="time for one write to a client")
    add(
        "--stall-seconds",
        type=_seconds,
        default=60.0,
        help="silence of a busy engine that /livez tolerates; after twice as long the worker ends",
    )
    add(
        "--termination-message",
        type=Path,
        default=Path(TERMINATION_MESSAGE_PATH),
        help="file that gets why the worker ended, if it exists",
    )
    add("--ping-seconds", type=float, default=10.0, help="silence after which a stream sends ': ping'")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value


def _seconds_or_none(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _share(text: str) -> int:
    """N of "1/N", 0 of "0"."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected 1/N with N from 1 to 999999999, or 0, got {text[:32]!r}")
    return int(match["one_in"] or 0)


def _word(text: str) -> str:
    if not 0 < len(text) <= MAX_EXTRA_ARGUMENT_CHARS:
        raise argparse.ArgumentTypeError(f"expected 1 to {MAX_EXTRA_ARGUMENT_CHARS} characters")
    return text


def _percent(text: str) -> int:
    value = int(text)
    if not 0 <= value <= MAX_DEVICE_MEMORY_PERCENT:
        raise argparse.ArgumentTypeError(f"expected 0..{MAX_DEVICE_MEMORY_PERCENT}, got {value}")
    return value


def _at_least(minimum: int, *, or_zero: bool = False) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < minimum and not (or_zero and value == 0):
            either = "0 or " if or_zero else ""
            raise argparse.ArgumentTypeError(f"expected {either}at least {minimum}, got {value}")
        return value

    return number
