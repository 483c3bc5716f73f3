"""The processes of a local fleet, and the list of its workers that routers follow."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from warmfleet_cli.errors import CliError
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.bounds import no_room
from warmfleet_cli.local.events import Emit
from warmfleet_cli.local.liveness import LivenessPolicy
from warmfleet_cli.local.log_file import LogFile
from warmfleet_cli.local.member import Member
from warmfleet_cli.local.plan import FleetPlan, ProcessPlan
from warmfleet_cli.local.ports import is_free
from warmfleet_cli.local.state import RunFolder, unwritable
from warmfleet_contracts.names import (
    API_KEY_VARIABLE,
    OPERATOR_TOKEN_VARIABLE,
    SALT_KEY_VARIABLE,
    WORKER_TOKEN_VARIABLE,
)
from warmfleet_runtime.memory import available_memory_bytes

_KILL_GRACE_SECONDS: Final = 15.0
"""Added to the drain timeout before a process is killed."""


class Members:
    """Starts, adds and removes processes; each is kept running until it leaves.

    members.start()
    obstacle = members.add_worker()
    members.remove_worker("smollm2-1")
    await members.stop()
    """

    def __init__(
        self,
        plan: FleetPlan,
        folder: RunFolder,
        *,
        emit: Emit,
        on_change: Callable[[], None],
        must_start: Callable[[], bool],
        kill: asyncio.Event,
        restarts: RestartPolicy,
        liveness: LivenessPolicy,
    ) -> None:
        """A process that ends while `must_start()` ends the fleet; once `kill` is set, nothing drains."""
        self._plan = plan
        self._folder = folder
        self._emit = emit
        self._on_change = on_change
        self._must_start = must_start
        self._kill = kill
        self._restart_policy = restarts
        self._liveness = liveness
        self._tokens = {worker.name: secrets.token_hex(32) for worker in plan.all_workers}
        self._salt_key = secrets.token_hex(32)
        self.operator_token = secrets.token_hex(32) if plan.scales and plan.asks_for_keys else ""
        """By which routers that require keys know the supervisor; empty where it needs none."""
        self._members: list[Member] = []
        self.keepers: dict[str, asyncio.Task[None]] = {}
        """By name; one ends when its process has left, or raises if it had to start."""
        self._removals: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def workers(self) -> list[Member]:
        """Those that drain included."""
        return [member for member in self._members if member.plan.role == "worker"]

    def in_order(self) -> list[Member]:
        """Workers by their place, then routers."""
        places = {plan.name: place for place, plan in enumerate(self._plan.processes)}
        return sorted(self._members, key=lambda member: places[member.plan.name])

    def start(self) -> None:
        """Start all that are planned first.

        Raises:
            CliError: a file cannot be written.
        """
        for plan in self._plan.workers + self._plan.routers:
            self._members.append(self._make(plan))
        self._write_endpoints()
        for member in self._members:
            self._keep(member)

    def add_worker(self) -> str:
        """Start a further worker; returns why there can be none, or "" if it starts."""
        taken = {member.plan.name for member in self._members}
        place = next(
            (plan for plan in self._plan.all_workers if plan.name not in taken and is_free(plan.port)), None
        )
        if place is None:
            leaving = " as long as others stop" if any(member.is_leaving for member in self.workers()) else ""
            return f"the ports of all further workers are busy{leaving}"
        starting = sum(member.phase in {"Starting", "Restarting"} for member in self.workers())
        obstacle = no_room(self._plan.worker_bytes, available_memory_bytes(), starting=starting)
        if obstacle:
            return obstacle
        try:
            member = self._make(place)
        except CliError as error:
            return str(error)
        self._members.append(member)
        try:
            self._write_endpoints()
        except CliError as error:
            self._members.remove(member)
            member.close()
            return str(error)
        self._keep(member)
        return ""

    def remove_worker(self, name: str) -> None:
        """Drain a worker; it is forgotten once it has ended, and is not restarted."""
        member = next(member for member in self._members if member.plan.name == name)
        member.leave()  # now: until its task runs, nothing may take it for one that stays
        removal = asyncio.create_task(self._removed(member), name=f"removal of {name}")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def stop(self) -> None:
        """Drain all; returns when they have ended. Routers first: workers answer while streams finish."""
        self._stopping = True
        for role in ("router", "worker"):
            members = [member for member in self._members if member.plan.role == role]
            for member in members:
                member.leave()
            await self._wait_or_kill(members)
        await asyncio.gather(*self._removals, return_exceptions=True)

    def close(self) -> None:
        """Close the logs, once all have ended."""
        for member in self._members:
            member.close()

    def _make(self, plan: ProcessPlan) -> Member:
        inherited = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
        if plan.role == "worker":
            secret = {WORKER_TOKEN_VARIABLE: self._tokens[plan.name]}
        else:
            secret = {SALT_KEY_VARIABLE: self._salt_key}
            if self.operator_token:
                secret[OPERATOR_TOKEN_VARIABLE] = self.operator_token
        path = self._folder.log_path(plan.name)
        try:
            log = LogFile(path)
        except OSError as error:
            raise unwritable(path, error) from error
        return Member(
            plan,
            environment={**inherited, "PYTHONUNBUFFERED": "1", **plan.environment, **secret},
            log=log,
            emit=self._emit,
            on_change=self._on_change,
            restarts=self._restart_policy,
            liveness=self._liveness,
        )

    def _keep(self, member: Member) -> None:
        keeping = member.keep(must_start=self._must_start)
        self.keepers[member.plan.name] = asyncio.create_task(keeping, name=member.plan.name)

    async def _removed(self, member: Member) -> None:
        started = time.monotonic()
        await self._wait_or_kill([member])
        if self._stopping:
            return  # with the whole fleet
        name = member.plan.name
        self._members.remove(member)
        del self.keepers[name]
        member.close()
        try:
            self._write_endpoints()  # not before: routers have streams of it until it has ended
        except CliError as error:
            self._emit("StateUnsaved", name, f"{error}; routers still list {name}")
        self._emit("Removed", name, f"{name} has stopped, {time.monotonic() - started:.1f} s after SIGTERM")
        self._on_change()

    async def _wait_or_kill(self, members: Sequence[Member]) -> None:
        """Wait until these have left; kill what has not by the deadline, or when nothing is to drain."""
        names = {member.plan.name for member in members}
        keepers = [keeper for name, keeper in self.keepers.items() if name in names]
        finished = asyncio.gather(*keepers, return_exceptions=True)
        killed = asyncio.ensure_future(self._kill.wait())
        waits: list[asyncio.Future[Any]] = [finished, killed]
        grace_seconds = self._plan.drain_timeout_seconds + _KILL_GRACE_SECONDS
        await asyncio.wait(waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        for member in members:
            member.kill()
        await finished

    def _write_endpoints(self) -> None:
        self._folder.write_endpoints(
            [
                {
                    "uid": member.plan.uid,
                    "name": member.plan.name,
                    "url": member.plan.url,
                    "token": self._tokens[member.plan.name],
                    "served_names": self._plan.served_names,
                    "shared_cache": self._plan.shared_cache,
                }
                for member in self.workers()
            ],
            self._plan.served_names,
            self._plan.hold_seconds,
        )
