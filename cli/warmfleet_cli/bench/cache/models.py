"""The model that a benchmark runs, and its KV bytes per token.

Imports the runner: loaded only when a benchmark runs.
"""

from dataclasses import dataclass
from pathlib import Path

from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.errors import ExitCode
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.kv_cache.layout import KvShape
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model_store.catalog import catalog_model_path
from warmfleet_worker.runner.runner import resolve_dtype
from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES
from warmfleet_worker.settings import Dtype


@dataclass(frozen=True, slots=True)
class BenchModel:
    """The properties of a model folder that a benchmark needs."""

    path: Path
    served_name: str
    dtype: Dtype
    """Never "Auto": resolved for this machine."""
    kv_shape: KvShape
    vocabulary_size: int
    max_position: int


def load_bench_model(served_name: str, path: Path | None, dtype: Dtype) -> BenchModel:
    """The folder at `path`, or the pulled catalog model of that name.

    Raises:
        BenchError: the catalog model has not been pulled.
        ModelError: the name is not in the catalog, or the folder's configuration is not supported.
    """
    folder = path or catalog_model_path(served_name, warmfleet_home())
    if folder is None:
        raise BenchError(
            f"model {served_name} is not on this machine",
            advice=f"fetch it: warmfleet model pull {served_name}",
            exit_code=ExitCode.MODEL,
        )
    config = load_model_config(folder)
    # The workers run on the same machine, so "Auto" means the same to them.
    resolved = resolve_dtype(dtype, config)
    return BenchModel(
        path=folder,
        served_name=served_name,
        dtype=resolved,
        kv_shape=KvShape(config.layers, config.kv_heads, config.head_dim, ELEMENT_BYTES[resolved]),
        vocabulary_size=config.vocab_size,
        max_position=config.max_position,
    )
