"""Equal seeds give equal figures in every process: Python's own seed of hashes decides nothing."""

import os
import subprocess
import sys

PROGRAM = """
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.scaling.autoscaler import FixedReplicas
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.workloads.named import workload_of

class Watching(FixedReplicas):
    def wanted(self, tick):
        print(tick.totals.models, tick.totals.replicas)
        return super().wanted(tick)

workload = workload_of("agent,requests=600,requestsPerSecond=2")
settings = SimulationSettings(
    replica=replica_settings("L40S", "Llama-3.1-8B", block_size_tokens=512),
    replicas=3,
    routing="LowestCost",
    autoscaler=Watching,
)
print(simulate(workload.generate(), settings).cached_tokens)
"""


def figures(hash_seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return process.stdout.splitlines()


def test_what_the_operator_reads_is_the_same_in_every_process() -> None:
    first, second = figures(1), figures(2)

    assert len(first) > 100
    assert "unique_value_tokens_per_second=0.0" not in first[-2]
    assert first == second
