"""An engine without its server, in a process of its own: the peer of one behind server and router."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from warmfleet_worker.engine_program import engine_program
from warmfleet_worker.engine_start import SLEEPING_THREADS
from warmfleet_worker.settings import EngineType

END_SECONDS: Final = 60
"""It ends vLLM's processes meanwhile, which would outlive a kill of their parent."""
MODULES: Final[dict[EngineType, str]] = {"Warmfleet": "shares.engine_alone", "VLLM": "shares.vllm_alone"}


class EngineWithoutServer:
    """One of `MODULES`, which state what they take and answer.

    with EngineWithoutServer.started("Warmfleet", model) as alone:
        seconds = alone.answer(prompts, 192)["wall"]
    """

    def __init__(self, read_from: IO[str], write_to: IO[str]) -> None:
        """Waits until the engine is ready."""
        self._read_from = read_from
        self._write_to = write_to
        self.engine: dict[str, str] = self._answer("engine")["engine"]
        """What it states of itself."""

    @classmethod
    @contextmanager
    def started(cls, engine_type: EngineType, model: Path) -> Iterator[Self]:
        """It ends with its input.

        Raises:
            EngineMissingError: there is no interpreter with vLLM.
        """
        command = [engine_program(engine_type).python, "-m", MODULES[engine_type], str(model)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**SLEEPING_THREADS, **os.environ},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield cls(process.stdout, process.stdin)
            finally:
                process.stdin.close()
                try:
                    process.wait(END_SECONDS)
                finally:
                    process.kill()

    def answer(
        self, prompts: list[list[int]], output_tokens: int, temperature: float = 0.0
    ) -> dict[str, float]:
        """Seconds that it takes for all prompts at once; `wall` is that until the last token."""
        work = {
            "prompts": prompts,
            "output_tokens": output_tokens,
            "temperature": temperature,
            "top_p": 0.95 if temperature else 1.0,
        }
        self._write_to.write(json.dumps(work) + "\n")
        self._write_to.flush()
        return self._answer("wall")

    def _answer(self, first_field: str) -> Any:
        """The next line that begins with this field; vLLM writes lines of its own between them."""
        for line in self._read_from:
            if line.startswith(f'{{"{first_field}"'):
                return json.loads(line)
        sys.exit("the engine ended: see above")
