"""Workers that sleep for the modelled time of each step, and compute nothing.

So capacity grows with replicas on a machine of any size; all else of them is as it ships.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from warmfleet_cli.bench.client import Question
from warmfleet_simulator.step_times import StepTimes
from warmfleet_testing.cluster.cluster import DevCluster
from warmfleet_testing.cluster.installed import tiny_deployment
from warmfleet_testing.truth.sleeping_runner import STEP_TIMES_VARIABLE

IMAGE: Final = "registry.devcluster.local/sleeping-worker:1"
STEPS: Final = StepTimes(base_ps=80 * 10**9, prefill_token_ps=10**9, decode_ps=5 * 10**9, context_token_ps=0)
_SOURCE: Final = Path(__file__).parents[2]


class SeededQuestion(Question):
    """Its answer repeats one token of the vocabulary."""

    def body(self) -> dict[str, Any]:
        return Question.body(self) | {"seed": 17}


def random_tokens(draw: random.Random, count: int) -> list[int]:
    """Token ids of a text that nothing else has."""
    return [draw.randrange(10, 250) for _ in range(count)]


def add_sleeping_image(cluster: DevCluster) -> None:
    """The image of CPU workers with another entry point."""
    images = json.loads(cluster.folder.images.read_text())["images"]
    like = next(reference for reference in images if "/warmfleet-worker-cpu:" in reference)
    support = str(_SOURCE / "tests" / "support")
    steps = msgspec.json.encode(STEPS).decode()
    path = os.pathsep.join(filter(None, [support, images[like]["env"].get("PYTHONPATH", "")]))
    cluster.add_image(
        IMAGE,
        like=like,
        entrypoint=[sys.executable, "-m", "warmfleet_testing.truth.sleeping_worker"],
        env=images[like]["env"] | {"PYTHONPATH": path, STEP_TIMES_VARIABLE: steps},
        paths=[*images[like]["paths"], str(_SOURCE)],
    )


def sleeping_deployment(
    name: str, seats: int, *, model_length_tokens: int = 512, **spec: Any
) -> dict[str, Any]:
    """A ModelDeployment of such workers, with so many seats each; `spec` adds fields."""
    engine = {
        "dtype": "Float32",
        "maxModelLengthTokens": model_length_tokens,
        "maxRunningSequences": seats,
        "image": IMAGE,
    }
    return tiny_deployment(name, engine=engine, **spec)
