"""The model that all engines compute: a folder with weights, and the same weights as a GGUF file."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from warmfleet_cli.bench.engine.programs import output_of
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.errors import ExitCode
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model_store.catalog import catalog_model_path


class RandomShape(StrEnum):
    """Values of `--random-weights`; `random_model` has what each is."""

    SMOLLM2_135M = "smollm2-135m"
    QWEN3_06B = "qwen3-0.6b"
    LLAMA_8B = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Where the weights are."""

    name: str
    folder: Path
    config: ModelConfig
    gguf: Path
    """Absent if llama.cpp is not measured."""


@contextlib.asynccontextmanager
async def engine_model(
    name: str, folder: Path | None, random: RandomShape | None, *, needs_gguf: bool
) -> AsyncIterator[EngineModel]:
    """The folder at `folder`, or the pulled catalog model `name`, or random weights.

    What is made for the run is removed at the end.

    Raises:
        BenchError: the catalog model has not been pulled, or a file cannot be written.
        ModelError: the name is not in the catalog, or the configuration is not supported.
    """
    with tempfile.TemporaryDirectory(prefix="warmfleet-bench-") as temporary:
        if random is not None:
            name, folder = f"{random.value} with random weights", Path(temporary) / "model"
            await output_of("warmfleet_cli.bench.engine.random_model", random.value, str(folder))
        found = folder or catalog_model_path(name, warmfleet_home())
        if found is None:
            raise BenchError(
                f"model {name} is not on this machine",
                advice=f"fetch it: warmfleet model pull {name}",
                exit_code=ExitCode.MODEL,
            )
        gguf = Path(temporary) / "model.gguf"
        if needs_gguf:
            await output_of("warmfleet_cli.bench.engine.gguf_file", str(found), str(gguf))
        yield EngineModel(name, found, load_model_config(found), gguf)
