"""An engine's process: takes cases on standard input, answers with the seconds of each step.

Python's library only. One line of JSON each way; the first line out describes the engine, or is an error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from warmfleet_cli.bench.engine.cases import Case, decoded

LEAST_STEPS = 3


class CaseEngine(Protocol):
    """What is measured."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def variants(self) -> list[str]:
        """Settings of which the fastest counts, such as numbers of threads; at least one."""

    def prepare(self, case: Case, variant: str, /) -> None:
        """Make the contexts of a case; not measured."""

    def step(self, case: Case, index: int, /) -> list[int]:
        """Compute one step, `index` after those before it; the next token of each sequence."""

    def reset(self, case: Case, /) -> None:
        """Forget what the steps added; not measured."""


def measured_steps(  # noqa: PLR0917 - one message has all of them
    engine: CaseEngine,
    case: Case,
    variant: str,
    most_steps: int,
    limit_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[int]]:
    """Seconds of each step after one that is not counted, and the tokens of that one."""
    engine.prepare(case, variant)
    tokens = engine.step(case, 0)
    seconds: list[float] = []
    while len(seconds) < most_steps and (len(seconds) < LEAST_STEPS or sum(seconds) < limit_seconds):
        started = clock()
        engine.step(case, len(seconds) + 1)
        seconds.append(clock() - started)
    engine.reset(case)
    return seconds, tokens


def serve(make_engine: Callable[[], CaseEngine]) -> int:
    """Answer until standard input ends."""
    # Libraries print where they like: from here on standard output is the log, and this file the answers.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields) + "\n")

        try:
            engine = make_engine()
        except Exception as error:  # noqa: BLE001 - the other end reports the reason of any failure
            answer(error=f"{type(error).__name__}: {error}")
            return 1
        answer(name=engine.name, dtype=engine.dtype, variants=engine.variants)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                seconds, tokens = measured_steps(
                    engine, decoded(asked["case"]), asked["variant"], asked["steps"], asked["seconds"]
                )
            except Exception as error:  # noqa: BLE001 - the same
                answer(error=f"{type(error).__name__}: {error}")
            else:
                answer(seconds=seconds, tokens=tokens)
    return 0
