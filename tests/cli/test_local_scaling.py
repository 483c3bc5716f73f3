"""`warmfleet up --autoscale` over real processes: stubs behind a router whose totals the test writes."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, Final

from warmfleet_cli.local.state import FleetState, RunFolder
from warmfleet_cli.status import scaling_line
from warmfleet_contracts.cache.fleet_totals import FleetTotals, ModelTotals, encode_totals
from warmfleet_runtime.files import write_file_atomically
from warmfleet_runtime.process_identity import identify
from warmfleet_testing.resources.scaling_signals import SEATS, replica
from warmfleet_testing.router.local_fleet import NAME, pids, running, stub_plan, wait_for_fleet

SHORT: Final = {
    "maxReplicas": 3,
    "scaleUp": {
        "stabilizationSeconds": 0,
        "periodSeconds": 1,
        "replicas": 1,
        "percent": 1,
        "panicSeconds": 1,
    },
    "scaleDown": {"stabilizationSeconds": 1, "periodSeconds": 1},
}


class Totals:
    """What the stub router answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.idle()

    def busy(self) -> None:
        """All seats of every replica are taken, and as many wait."""
        self._write(running_sequences=SEATS, waiting_sequences=SEATS)

    def idle(self, **values: float) -> None:
        """Nothing runs; each replica's cache is worth as much as `values` has it, by name."""
        self._write(values)

    def held(self, requests: int) -> None:
        """Nothing runs, and so many requests wait until the model wakes."""
        self._write(models={"stub": ModelTotals(held_requests=requests, held_tokens=10 * requests)})

    def _write(
        self,
        values: dict[str, float] | None = None,
        models: dict[str, ModelTotals] | None = None,
        **load: Any,
    ) -> None:
        worth = values or {}
        replicas = tuple(
            replica(f"stubs-{i}", unique_value_tokens_per_second=worth.get(f"stubs_{i}", 0.0), **load)
            for i in range(4)
        )
        totals = FleetTotals(
            router="stubs-router-0", uptime_seconds=100.0, replicas=replicas, models=models or {}
        )
        write_file_atomically(self.path, encode_totals(totals))


def ready(*names: str) -> Callable[[FleetState], bool]:
    """Whether exactly these workers run, and are ready."""
    return lambda fleet: (
        {process.name: process.phase for process in fleet.processes if process.role == "worker"}
        == dict.fromkeys(names, "Ready")
    )


@contextmanager
def scaling(
    home: Path, *spare_workers: str, first: int = 1, hold_seconds: float | None = None, **changes: Any
) -> Iterator[tuple[subprocess.Popen[str], Totals, FleetState]]:
    """One worker, or `first`, that may get others; with `hold_seconds` the fleet may sleep."""
    totals = Totals(home / "totals.json")
    plan = stub_plan(
        workers=("",) * first,
        spare_workers=spare_workers,
        router=f"totals={totals.path}",
        autoscaling={**SHORT, **changes},
        hold_seconds=hold_seconds,
    )
    with running(home, plan) as (supervisor, fleet):
        yield supervisor, totals, fleet


def listed(home: Path) -> list[str]:
    """What routers follow."""
    return [entry["name"] for entry in endpoints_file(home)["endpoints"]]


def endpoints_file(home: Path) -> dict[str, Any]:
    file: dict[str, Any] = json.loads(RunFolder(home, NAME).endpoints_path.read_text())
    return file


def test_workers_come_with_demand_and_go_by_the_worth_of_their_caches(tmp_path: Path) -> None:
    with scaling(tmp_path, "", "") as (supervisor, totals, before):
        totals.busy()
        grown = wait_for_fleet(tmp_path, ready("stubs-0", "stubs-1", "stubs-2"))
        listed_grown = listed(tmp_path)
        totals.idle(stubs_0=1.0, stubs_1=9.0, stubs_2=5.0)
        shrunk = wait_for_fleet(tmp_path, ready("stubs-1"))
        listed_shrunk = listed(tmp_path)
        totals.busy()
        again = wait_for_fleet(tmp_path, ready("stubs-0", "stubs-1", "stubs-2"))
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert supervisor.returncode == 0
    assert (listed_grown, listed_shrunk) == (["stubs-0", "stubs-1", "stubs-2"], ["stubs-1"])
    assert grown.scales
    assert len({process.port for process in grown.processes}) == 4
    changes = [(change.from_replicas, change.to_replicas) for change in again.changes]
    assert changes == [(1, 2), (2, 3), (3, 2), (2, 1), (1, 2), (2, 3)]
    assert "1 -> 2 replicas: demand above supply (demand of what ready replicas take: tokens 0 %" in output
    assert "3 -> 2 replicas: demand below supply" in output
    assert "; stubs-0 goes, as its cache is worth least\n" in output
    assert "restart" not in output
    gone = [process.identity for process in (*before.processes[:1], *grown.processes[2:3])]
    assert [identify(process.pid) for process in gone if process is not None] == [None, None]
    assert not {process.identity for process in shrunk.processes} & set(gone)
    assert all(identify(pid) is None for pid in pids(again))


def test_a_newcomer_that_cannot_start_is_tried_again_and_goes_first(tmp_path: Path) -> None:
    with scaling(tmp_path, "fail", maxReplicas=2) as (supervisor, totals, before):
        totals.busy()
        wait_for_fleet(tmp_path, lambda fleet: any(process.restarts >= 2 for process in fleet.processes))
        totals.idle()
        after = wait_for_fleet(tmp_path, ready("stubs-0"))
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert after.processes[0].identity == before.processes[0].identity
    assert "stubs-1 exited with code 3; restart 2" in output
    assert "; stubs-1 goes, as it is not ready\n" in output
    assert [(change.from_replicas, change.to_replicas) for change in after.changes] == [(1, 2), (2, 1)]


def test_a_fleet_stops_while_a_worker_drains(tmp_path: Path) -> None:
    with scaling(tmp_path, "stubborn", maxReplicas=2) as (supervisor, totals, _):
        totals.busy()
        wait_for_fleet(tmp_path, ready("stubs-0", "stubs-1"))
        totals.idle(stubs_0=1.0)
        draining = wait_for_fleet(
            tmp_path, lambda fleet: any(process.phase == "Draining" for process in fleet.processes)
        )
        supervisor.send_signal(signal.SIGINT)
        wait_for_fleet(tmp_path, lambda fleet: fleet.phase == "Stopping")
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert supervisor.returncode == 0
    assert output.rstrip().endswith("stubs has stopped")
    assert all(identify(pid) is None for pid in pids(draining))


def test_busy_ports_are_reported_once_and_stop_no_decision(tmp_path: Path) -> None:
    with scaling(tmp_path, maxReplicas=2) as (supervisor, totals, _):
        totals.busy()
        wait_for_fleet(tmp_path, lambda fleet: fleet.phase == "Ready")
        assert supervisor.stdout is not None
        # Ended where the line does not come: then its output shows what came instead.
        end = Timer(60, supervisor.send_signal, (signal.SIGINT,))
        end.start()
        lines = []
        for line in supervisor.stdout:
            lines.append(line)
            if "wanted" in line:
                break
        end.cancel()
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert lines[-1] == "2 replicas are wanted, 1 run: the ports of all further workers are busy\n", lines
    assert "wanted" not in output


MAY_SLEEP: Final = {"minReplicas": 0, "maxReplicas": 2, "zero": {"idleSeconds": 1}}


def test_a_fleet_without_requests_falls_asleep_and_a_held_one_wakes_it(tmp_path: Path) -> None:
    with scaling(tmp_path, "", hold_seconds=60.0, **MAY_SLEEP) as (supervisor, totals, before):
        asleep = wait_for_fleet(tmp_path, ready())
        listed_asleep = endpoints_file(tmp_path)
        totals.held(1)
        awake = wait_for_fleet(tmp_path, ready("stubs-0"))
        listed_awake = endpoints_file(tmp_path)
        totals.idle()
        wait_for_fleet(tmp_path, lambda fleet: len(fleet.changes) == 3 and ready()(fleet))
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert (listed_asleep["endpoints"], listed_asleep["names"]) == ([], ["stub"])
    assert listed_asleep["hold_seconds"] == listed_awake["hold_seconds"] == {"stub": 60.0}
    assert [entry["served_names"] for entry in listed_awake["endpoints"]] == [["stub"]]
    assert awake.processes[0].identity != before.processes[0].identity
    assert [(change.from_replicas, change.to_replicas) for change in awake.changes] == [(1, 0), (0, 1)]
    steps = [line for line in output.splitlines() if "replicas" in line or "asleep" in line]
    assert [step.partition(" (")[0] for step in steps[:4]] == [
        "1 -> 0 replicas: idle",
        "asleep: a request for stub starts a worker",
        "0 -> 1 replicas: woken by 1 held request",
        "1 -> 0 replicas: idle",
    ]
    assert steps[0].endswith("; stubs-0 goes")
    assert scaling_line(asleep).endswith("s); asleep until a request comes")


def test_a_fleet_that_begins_asleep_starts_no_worker_for_which_no_request_waits(tmp_path: Path) -> None:
    with scaling(tmp_path, "", "", first=0, hold_seconds=60.0, **MAY_SLEEP) as (supervisor, totals, before):
        assert ready()(before)
        assert scaling_line(before) == "autoscaling: no change yet; asleep until a request comes"
        totals.held(40)
        awake = wait_for_fleet(tmp_path, lambda fleet: len(fleet.processes) > 1)
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert [(change.from_replicas, change.to_replicas) for change in awake.changes] == [(0, 1)]
    assert (
        "asleep: a request for stub starts a worker\n0 -> 1 replicas: woken by 40 held requests\n" in output
    )


def test_a_fleet_whose_worker_cannot_start_sleeps_again_when_nothing_asks(tmp_path: Path) -> None:
    with scaling(tmp_path, "fail", first=0, hold_seconds=60.0, **MAY_SLEEP) as (supervisor, totals, _):
        totals.held(3)
        wait_for_fleet(tmp_path, lambda fleet: any(process.restarts >= 2 for process in fleet.processes))
        totals.idle()
        asleep = wait_for_fleet(tmp_path, ready())
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=20)

    assert [(change.from_replicas, change.to_replicas) for change in asleep.changes] == [(0, 1), (1, 0)]
    assert "stubs-0 exited with code 3; restart 2" in output
