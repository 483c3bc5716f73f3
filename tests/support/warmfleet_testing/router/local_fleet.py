"""A local fleet of stub processes under the real supervisor, run as users run it: in a process of its own.

As a script: `python local_fleet.py HOME PLAN_JSON [detach]`.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from warmfleet_cli.errors import exit_code_of
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.detached import start_detached
from warmfleet_cli.local.liveness import LivenessPolicy
from warmfleet_cli.local.plan import FleetPlan, ProcessPlan
from warmfleet_cli.local.state import FleetState, RunFolder
from warmfleet_cli.local.supervisor import supervise
from warmfleet_cli.output import print_error
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_testing.processes.ports import free_port_range

NAME = "stubs"
_T = TypeVar("_T")
_STUB = str(Path(__file__).parents[1] / "processes/stub_server.py")
_WAIT_SECONDS = 60.0


def stub_plan(
    *,
    workers: Sequence[str] = ("",),
    spare_workers: Sequence[str] = (),
    router: str = "",
    drain_seconds: float = 5.0,
    autoscaling: dict[str, Any] | None = None,
    hold_seconds: float | None = None,
) -> FleetPlan:
    """A fleet of stubs; each string holds the options of one of them. With `autoscaling` it scales itself.

    With `hold_seconds` it may sleep.
    """
    ports = itertools.count(free_port_range(len(workers) + len(spare_workers) + 1))

    def stub(name: str, role: str, options: str) -> ProcessPlan:
        port = next(ports)
        argv = (sys.executable, _STUB, str(port), *options.split())
        return msgspec.convert(
            {"name": name, "role": role, "argv": argv, "port": port, "uid": name}, ProcessPlan
        )

    places = tuple(stub(f"stubs-{i}", "worker", given) for i, given in enumerate((*workers, *spare_workers)))
    return FleetPlan(
        name=NAME,
        served_names=("stub",),
        workers=places[: len(workers)],
        spare_workers=places[len(workers) :],
        routers=(stub("stubs-router-0", "router", router),),
        startup_timeout_seconds=_WAIT_SECONDS,
        drain_timeout_seconds=drain_seconds,
        autoscaling=autoscaling,
        scales=autoscaling is not None,
        hold_seconds=hold_seconds,
    )


def start(home: Path, plan: FleetPlan, *options: str) -> subprocess.Popen[str]:
    """The supervisor as a process; with `detach` the process that starts one and returns."""
    return subprocess.Popen(
        [sys.executable, __file__, str(home), msgspec.json.encode(plan).decode(), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextlib.contextmanager
def running(home: Path, plan: FleetPlan) -> Iterator[tuple[subprocess.Popen[str], FleetState]]:
    """A supervisor and its fleet, ready; killed at the end if the test has not ended it."""
    process = start(home, plan)
    try:
        yield process, wait_for_fleet(home, lambda fleet: fleet.phase == "Ready")
    finally:
        process.kill()
        process.communicate()


def wait_for_fleet(home: Path, wanted: Callable[[FleetState], bool]) -> FleetState:
    """The fleet's state as soon as it is as wanted."""
    folder = RunFolder(home, NAME)
    return wait_until(lambda: next((s for s in (folder.read(),) if s is not None and wanted(s)), None))


def wait_until(condition: Callable[[], _T | None]) -> _T:
    """What `condition` returns as soon as it is truthy."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {_WAIT_SECONDS:g} s")


def pids(fleet: FleetState) -> list[int]:
    """Of every process of the fleet, without the supervisor."""
    return [process.identity.pid for process in fleet.processes if process.identity is not None]


def main() -> None:
    home, plan = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=FleetPlan)
    try:
        if "detach" in sys.argv[3:]:
            start_detached(plan, home, lambda event: sys.stdout.write(event.text + "\n"))
        else:
            supervise(
                plan,
                RunFolder(home, plan.name),
                lambda event: sys.stdout.write(event.text + "\n"),
                restarts=RestartPolicy(first_seconds=0.05, max_seconds=0.4),
                liveness=LivenessPolicy(period_seconds=0.1, timeout_seconds=2.0, failures=2),
                tick_seconds=0.1,
            )
    except WarmfleetError as error:
        sys.stdout.flush()
        print_error(error)
        os._exit(exit_code_of(error))


if __name__ == "__main__":
    main()
