"""The processes of the engines that are measured: what each is started with, and one that runs."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import warmfleet_cli
from warmfleet_cli.bench.engine.cases import KINDS, Case, Kind, encoded, sequence_tokens
from warmfleet_cli.bench.engine.results import READS
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.errors import ExitCode
from warmfleet_worker.engine_program import EngineMissingError, engine_program
from warmfleet_worker.engine_start import SLEEPING_THREADS
from warmfleet_worker.vllm_engine.arguments import ALWAYS

_PROGRAMS: Final = "warmfleet_cli.bench.engine"
_CODE: Final = Path(warmfleet_cli.__file__).parents[1]
PEERS_PYTHON: Final = _CODE.parent / ".venv-peers" / "bin" / "python"
"""Made by `make peers`."""
ANSWER_SECONDS: Final = 900.0
"""For one case: the contexts of its sequences may have to be computed first."""
KV_SPARE_RATIO: Final = 1.25
"""Of vLLM's cache: besides the contexts it has a prompt that is computed."""
MAX_ANSWER_BYTES: Final = 1024 * 1024
STOP_SECONDS: Final = 10.0
NO_CHANGE: Final[Mapping[str, str]] = {}
NO_GPU: Final[Mapping[str, str]] = {"CUDA_VISIBLE_DEVICES": ""}
"""For processes that are to use the processors, where there is a GPU too."""


class EngineFailed(Exception):  # noqa: N818 - named after what is wrong
    """An engine cannot start, or cannot compute a case; the text has its reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """How an engine's process is started."""

    name: str
    module: str
    arguments: Sequence[str]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    """Why it cannot be started, or ""."""
    kinds: frozenset[Kind] = KINDS
    """Cases of which it shows something."""


def own_program(  # noqa: PLR0917 - a program's arguments
    name: str, model: Path, dtype: str, weight_quantization: str, cpu_kernels: str, blocks: int
) -> Program:
    """Our engine, with the environment of a worker's."""
    return Program(
        name,
        f"{_PROGRAMS}.own_program",
        (str(model), dtype, weight_quantization, cpu_kernels, str(blocks)),
        environment=SLEEPING_THREADS,
    )


def llama_program(
    gguf: Path, cases: Iterable[Case], python: Path = PEERS_PYTHON, *, on_gpu: bool = False
) -> Program:
    """llama.cpp, in an environment of its own; nothing of ours is installed there."""
    missing = "" if python.is_file() else "not installed: make peers"
    sequences: dict[int, int] = {}
    for case in cases:
        if case.kind == "decode":
            sequences[case.context_tokens] = max(case.batch, sequences.get(case.context_tokens, 0))
    return Program(
        "llama.cpp",
        f"{_PROGRAMS}.llama_program",
        (str(gguf), json.dumps(sequences)),
        python=str(python),
        environment={"PYTHONPATH": str(_CODE)},
        missing="built for processors alone: --cpu measures them" if on_gpu else missing,
    )


def transformers_program(model: Path) -> Program:
    """transformers, which development has."""
    return Program(
        "transformers",
        f"{_PROGRAMS}.transformers_program",
        (str(model),),
        missing="" if find_spec("transformers") else "not installed: make setup",
    )


def vllm_program(model: Path, dtype: str, cases: Iterable[Case], kv_bytes_per_token: int) -> Program:
    """vLLM, in the environment that workers with vLLM have, with its graphs compiled."""
    python, missing = "", ""
    try:
        python = engine_program("VLLM").python
    except EngineMissingError as error:
        missing = str(error)
    tokens = sequence_tokens(cases)
    kv_bytes = int(KV_SPARE_RATIO * kv_bytes_per_token * sum(tokens))
    return Program(
        "vLLM",
        f"{_PROGRAMS}.vllm_program",
        (str(model), dtype, str(len(tokens)), str(max(tokens, default=0)), str(kv_bytes)),
        python=python,
        environment={**ALWAYS, "PYTHONPATH": str(_CODE)},
        missing=missing,
    )


def reads_program(bytes_of_cases: Mapping[str, int], threads: int, buffer_bytes: int) -> Program:
    """What reads memory alone, with as many threads as the limit took."""
    arguments = (json.dumps(dict(bytes_of_cases)), str(threads), str(buffer_bytes))
    # Products limit a prefill, not reads.
    return Program(READS, f"{_PROGRAMS}.reads_program", arguments, kinds=frozenset({"decode"}))


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine's process that has loaded its model."""

    name: str
    """The program's."""
    version: str
    dtype: str
    variants: Sequence[str]
    kinds: frozenset[Kind]
    """The program's."""
    _process: "asyncio.subprocess.Process"

    async def measure(
        self, case: Case, variant: str, *, steps: int, seconds: float
    ) -> tuple[list[float], list[int]]:
        """Seconds of at most `steps` steps, and the first one's tokens; stops early after `seconds`.

        Raises:
            EngineFailed: it cannot compute this case, or it ended.
        """
        asked = {"case": encoded(case), "variant": variant, "steps": steps, "seconds": seconds}
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            await self._process.stdin.drain()
        answer = await _answer(self._process)
        return answer["seconds"], answer["tokens"]


@contextlib.asynccontextmanager
async def running(
    program: Program, log_folder: Path, environment: Mapping[str, str] = NO_CHANGE
) -> AsyncIterator[RunningEngine]:
    """Start an engine, in `environment` and its own, and wait for its model; it ends with the block.

    Raises:
        EngineFailed: it is not installed, or does not start.
    """
    if program.missing:
        raise EngineFailed(program.missing)
    with (log_folder / f"engine-{program.name.replace(' ', '-')}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(program.python, "-m", program.module, *program.arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environment, **program.environment},
            limit=MAX_ANSWER_BYTES,
        )
        try:
            first = await _answer(process)
            yield RunningEngine(
                program.name, first["name"], first["dtype"], first["variants"], program.kinds, process
            )
        finally:
            await _stop(process)


async def output_of(module: str, *arguments: str, environment: Mapping[str, str] = NO_CHANGE) -> bytes:
    """Standard output of `python -m module`; `environment` comes on top of this process's.

    Raises:
        BenchError: it fails; with what it wrote last.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        output, errors = await process.communicate()
    finally:
        await _stop(process)
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise BenchError(
            f"{module} failed: {lines[-1] if lines else process.returncode}", exit_code=ExitCode.START_FAILED
        )
    return output


async def _answer(process: "asyncio.subprocess.Process") -> dict[str, Any]:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), ANSWER_SECONDS)
        answer: dict[str, Any] = json.loads(line)
    except TimeoutError:
        raise EngineFailed(f"no answer within {ANSWER_SECONDS:.0f} s") from None
    except ValueError:  # also of no line at all
        raise EngineFailed("it ended; its log has the reason") from None
    if "error" in answer:
        raise EngineFailed(answer["error"])
    return answer


async def _stop(process: "asyncio.subprocess.Process") -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # Also when this task is cancelled meanwhile.
        if process.returncode is None:
            process.kill()
            await process.wait()
