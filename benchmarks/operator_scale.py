"""What does one operator need for many ModelDeployments, and what does it write?

A devcluster of its own: a real API server with its controllers, one process node on which the chart's
operator runs with the rights of its ServiceAccount, and hollow nodes, whose pods are reported as ready
without running. Routers are hollow, too; a stand-in answers for them, with a whole answer's size, that every
ready worker is served. So Ready is True by the operator's own rules, and every read and write is a real one.

First one deployment, for what an operator costs that has little to do; then --deployments at once, until all
are Ready; a pause; a restart of the operator; the end of all deployments. The audit log counts the writes.

    make controlplane, then as root: PYTHONPATH=tests/support python benchmarks/operator_scale.py
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_testing.cluster.scaled_fleet import ScaledFleet, Usage, by_kind, scaled_fleet

MIB: Final = 2**20
CONVERGE_SECONDS: Final = 120.0
PEAK_MIB: Final = 256.0
IDLE_MIB: Final = 150.0
GIVE_UP_FACTOR: Final = 5
SETTLE_SECONDS: Final = 15.0
"""Statuses have followed by then: routers are asked every ten."""


@dataclass(frozen=True, slots=True)
class Idle:
    """An operator with nothing to do, over a while."""

    seconds: float
    cpu_ratio: float
    """Of one core."""
    resident_mib: float
    writes: Mapping[str, int]

    def line(self) -> str:
        return (
            f"{self.resident_mib:.0f} MiB, {self.cpu_ratio:.2%} of a core over {self.seconds:g} s, "
            f"{sum(self.writes.values())} writes"
        )


@dataclass(frozen=True, slots=True)
class Work:
    """From the first request to the end of something that many deployments go through."""

    seconds: float
    cpu_seconds: float
    """Of the operator."""
    peak_mib: float
    """Most that the operator's process has held in memory so far."""
    writes: Mapping[str, int]

    def line(self, deployments: int) -> str:
        each = sum(self.writes.values()) / deployments
        return (
            f"{self.seconds:.1f} s; operator: {self.cpu_seconds:.1f} s of CPU, peak {self.peak_mib:.0f} MiB, "
            f"{each:.2f} writes per deployment"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    idle_with_one: Idle
    converge: Work
    idle_with_all: Idle
    restart: Work
    """Seconds from the end of the old process until the new one has looked at every deployment."""
    idle_after_restart: Idle
    delete: Work

    def targets(self) -> list[Target]:
        limits = (
            ("all Ready", self.converge.seconds, CONVERGE_SECONDS, " s"),
            ("peak", max(self.converge.peak_mib, self.delete.peak_mib), PEAK_MIB, " MiB"),
            ("idle with one", self.idle_with_one.resident_mib, IDLE_MIB, " MiB"),
            ("idle with all", self.idle_with_all.resident_mib, IDLE_MIB, " MiB"),
            ("idle after the restart", self.idle_after_restart.resident_mib, IDLE_MIB, " MiB"),
            ("writes while idle", sum(self.idle_with_all.writes.values()), 0, ""),
            ("writes after the restart", sum(self.restart.writes.values()), 0, ""),
            ("writes later", sum(self.idle_after_restart.writes.values()), 0, ""),
        )
        return [
            Target(name, measured, limit, at_least=False, unit=unit) for name, measured, limit, unit in limits
        ]


async def idle(fleet: ScaledFleet, pid: int, seconds: float) -> Idle:
    """Let statuses settle, then watch an operator that has nothing to do."""
    await asyncio.sleep(SETTLE_SECONDS)
    before, since = Usage.of(pid), time.time()
    await asyncio.sleep(seconds)
    after = Usage.of(pid)
    used = after.cpu_seconds - before.cpu_seconds
    return Idle(seconds, used / seconds, after.resident_bytes / MIB, by_kind(fleet.writes(since)))


def work(fleet: ScaledFleet, pid: int, since: float, before_cpu_seconds: float) -> Work:
    """What was done since a unix time."""
    seconds, usage = time.time() - since, Usage.of(pid)
    writes = by_kind(fleet.writes(since))
    return Work(seconds, usage.cpu_seconds - before_cpu_seconds, usage.peak_resident_bytes / MIB, writes)


async def measure(options: argparse.Namespace) -> Measured:
    count, limit = options.deployments, CONVERGE_SECONDS * GIVE_UP_FACTOR
    async with scaled_fleet(pods_each=options.pods, hollow=options.hollow_nodes) as fleet:
        pid = await fleet.operator_pid()
        await fleet.create(1)
        await fleet.until(fleet.ready_count, 1, seconds=limit)
        idle_with_one = await idle(fleet, pid, options.idle_seconds)
        print(f"idle with one deployment: {idle_with_one.line()}", flush=True)
        await fleet.delete_all()
        await fleet.until(fleet.left_count, 0, seconds=limit)

        since, used = time.time(), Usage.of(pid).cpu_seconds
        await fleet.create(count)
        await fleet.until(fleet.ready_count, count, seconds=limit)
        converge = work(fleet, pid, since, used)
        print(f"{count} deployments of {options.pods} pods Ready: {converge.line(count)}", flush=True)
        print("  " + ", ".join(f"{number} {name}" for name, number in converge.writes.items()), flush=True)
        idle_with_all = await idle(fleet, pid, options.idle_seconds)
        print(f"idle with all: {idle_with_all.line()}", flush=True)

        since = time.time()
        await fleet.restart_operator()
        pid = await fleet.operator_pid()
        await fleet.until(fleet.looked_at_count, count, seconds=limit)
        restart = work(fleet, pid, since, 0.0)
        print(f"restarted, and has looked at all: {restart.line(count)}", flush=True)
        idle_after_restart = await idle(fleet, pid, options.idle_seconds)
        print(f"idle after the restart: {idle_after_restart.line()}", flush=True)

        since, used = time.time(), Usage.of(pid).cpu_seconds
        await fleet.delete_all()
        await fleet.until(fleet.left_count, 0, seconds=limit)
        delete = work(fleet, pid, since, used)
        print(f"all gone, pods too: {delete.line(count)}", flush=True)
    return Measured(idle_with_one, converge, idle_with_all, restart, idle_after_restart, delete)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--pods", type=int, default=5, help="of each deployment")
    parser.add_argument("--hollow-nodes", type=int, default=10)
    parser.add_argument(
        "--idle-seconds", type=float, default=75.0, help="of each pause; a resync is within 60"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/operator-scale"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    measured = asyncio.run(measure(options))
    return report.end(f"{options.deployments} deployments:", measured.targets(), **asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
