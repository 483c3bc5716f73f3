"""What the benchmarks of this room are asked, and the model that they need."""

import argparse
from pathlib import Path

from shares.setups import MODEL
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.engine_program import EngineMissingError, engine_program
from warmfleet_worker.model_store.catalog import catalog_model_path
from warmfleet_worker.settings import EngineType


def read_options(
    description: str | None, engine_type: EngineType, *, rounds: int, folder: str
) -> tuple[argparse.Namespace, Path]:
    """The options, and the folder of `MODEL`; ends the process where that or the engine is missing."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=18090, help="of the router; the worker has the next one")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results") / folder)
    options = parser.parse_args()
    model_path = catalog_model_path(MODEL, warmfleet_home())
    if model_path is None:
        parser.error(f"`warmfleet model pull {MODEL}` fetches the model first")
    try:
        engine_program(engine_type)
    except EngineMissingError as error:
        parser.error(str(error))
    return options, model_path
