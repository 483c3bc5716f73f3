"""The engines that the suite of both runs with, and how its tests state where the two differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from warmfleet_testing.processes.process_tree import descendants, name_of

MARKER: Final = "only_with"
VLLM_TIMEOUT_SECONDS: Final = 2400
"""Of a test with vLLM; a fleet that starts for it counts."""


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """One value of `spec.engine.type`, and what tests that run with both have to know of it."""

    type: str
    block_tokens: int
    start_seconds: float
    """Longest start of a worker, on a machine that does other things, too."""
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a tiny model's `config.json`."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Of a worker."""
        return ("--engine-type", self.type, "--block-size-tokens", str(self.block_tokens))

    @property
    def fleet(self) -> dict[str, Any]:
        """Arguments of `whole_fleet`."""
        return {
            "engine": {"type": self.type},
            "block_size_tokens": self.block_tokens,
            "start_seconds": self.start_seconds,
        }

    @property
    def is_vllm(self) -> bool:
        return self is VLLM

    def core_pid(self, worker_pid: int) -> int:
        """Of the process that computes: the server's child, or below that vLLM's engine core."""
        below = descendants(worker_pid)
        if not self.is_vllm:
            return below[0]
        return next(pid for pid in below if name_of(pid).startswith("VLLM::EngineCor"))


OWN: Final = EngineUnderTest("Warmfleet", block_tokens=16, start_seconds=120)
VLLM: Final = EngineUnderTest(
    "VLLM",
    # The least that vLLM's attention takes on a CPU, of blocks and of heads.
    block_tokens=32,
    model_fields={"head_dim": 32},
    start_seconds=1200,
)
ENGINES: Final = (
    pytest.param(OWN, id=OWN.type),
    pytest.param(VLLM, id=VLLM.type, marks=[pytest.mark.vllm, pytest.mark.timeout(VLLM_TIMEOUT_SECONDS)]),
)


def only_with(engine: EngineUnderTest, *, difference: str) -> pytest.MarkDecorator:
    """A test that the other engine is left out of; `difference` is the row of docs/reference/engines.md."""
    return pytest.mark.only_with(engine, difference)
