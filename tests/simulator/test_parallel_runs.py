"""Processes of simulations live no longer than the one that began them."""

import subprocess
import sys
from functools import partial
from pathlib import Path

from warmfleet_testing.processes.process_tree import descendants, is_running
from warmfleet_testing.router.watched_fleet import wait_until

SECONDS = 60.0
COMMAND = (
    *(sys.executable, "-m", "warmfleet_cli", "simulate", "--generate", "steady,requests=100000"),
    *("--replicas", "2", "--routing", "LowestCost,RoundRobin", "--jobs", "2"),
)


def simulating(pid: int) -> list[int]:
    """Those of its processes that simulate."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in descendants(pid)}
    return [child for child, command in commands.items() if b"spawn_main" in command]


def test_simulations_end_with_a_process_that_is_killed() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            found = partial(simulating, process.pid)
            wait_until(lambda: len(found()) == 2, found, seconds=SECONDS)
            children = found()
        finally:
            process.kill()

    wait_until(lambda: not any(map(is_running, children)), lambda: children, seconds=SECONDS)
