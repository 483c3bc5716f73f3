"""Which program the server starts as its engine: ours, or vLLM's in an interpreter of its own."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.settings import EngineType

VLLM_PYTHON_VARIABLE: Final = "WARMFLEET_VLLM_PYTHON"
"""Path of an interpreter that has vLLM."""
_MADE_BY_MAKE: Final = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


class EngineMissingError(WarmfleetError):
    """The engine that the settings ask for is not installed; the text has what to do."""


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """`python -m module`, which takes `--fd` and `--settings` and speaks `engine.messages`."""

    module: str = "warmfleet_worker.engine_process"
    python: str = sys.executable


OWN_PROGRAM: Final = EngineProgram()


def engine_program(
    engine_type: EngineType,
    environment: Mapping[str, str] = os.environ,
    made_by_make: Path = _MADE_BY_MAKE,
) -> EngineProgram:
    """The program of an engine type.

    Raises:
        EngineMissingError: no interpreter with vLLM is known.
    """
    if engine_type == "Warmfleet":
        return OWN_PROGRAM
    if engine_type != "VLLM":
        raise EngineMissingError(f"no program is known for the engine type {engine_type}")
    python = Path(environment.get(VLLM_PYTHON_VARIABLE, "") or made_by_make)
    if not python.is_file():
        raise EngineMissingError(
            f"engine type VLLM needs vLLM, and there is no {python}: run `make vllm`, "
            f"or name an interpreter that has vLLM in ${VLLM_PYTHON_VARIABLE}"
        )
    return EngineProgram("warmfleet_worker.vllm_engine.process", str(python))
