"""Starts the processes of one local fleet, restarts them, and stops all of them when it ends."""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import httpx
import msgspec

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.child import Child
from warmfleet_cli.local.liveness import LivenessPolicy, until_unresponsive
from warmfleet_cli.local.log_file import LogFile, worth_quoting
from warmfleet_cli.local.plan import FleetPlan, ProcessPlan
from warmfleet_cli.local.state import (
    FleetPhase,
    FleetState,
    ProcessPhase,
    ProcessState,
    RunFolder,
    unwritable,
)
from warmfleet_contracts.names import API_KEY_VARIABLE, SALT_KEY_VARIABLE, WORKER_TOKEN_VARIABLE
from warmfleet_runtime.process_identity import ProcessIdentity, identify

_READY_POLL_SECONDS: Final = 0.1
_PROBE_TIMEOUT_SECONDS: Final = 5.0
_KILL_GRACE_SECONDS: Final = 15.0
"""Added to the drain timeout before a process is killed."""
_QUOTED_LOG_LINES: Final = 8
_SAVE_RETRY_SECONDS: Final = 2.0

STOP_AT_ONCE_SIGNAL: Final = signal.SIGQUIT
"""Not a second SIGTERM: two SIGTERM in a row may arrive as one."""

EventKind = Literal[
    "Started",
    "ProcessReady",
    "FleetReady",
    "Unresponsive",
    "Restarting",
    "StateUnsaved",
    "Stopping",
    "Stopped",
]


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """A change in the fleet, for its log and its terminal."""

    kind: EventKind
    process: str = ""
    text: str
    unix_seconds: float = msgspec.field(default_factory=time.time)


class _Member:
    """One process of the fleet, over all its restarts."""

    def __init__(self, plan: ProcessPlan, log: LogFile, environment: dict[str, str]) -> None:
        self.plan = plan
        self.log = log
        self.environment = environment
        self.child: Child | None = None
        self.identity: ProcessIdentity | None = None
        self.phase: ProcessPhase = "Starting"
        self.restarts = 0
        self.started_unix_seconds = 0.0

    def state(self) -> ProcessState:
        return ProcessState(
            name=self.plan.name,
            role=self.plan.role,
            url=self.plan.url,
            port=self.plan.port,
            log_path=str(self.log.path),
            phase=self.phase,
            identity=self.identity,
            restarts=self.restarts,
            started_unix_seconds=self.started_unix_seconds,
        )


class Supervisor:
    """Runs a local fleet once; `supervise` adds the signal handlers and the lock.

    `run` returns after `request_stop`, when every process has ended.
    """

    def __init__(
        self,
        plan: FleetPlan,
        folder: RunFolder,
        report: Callable[[FleetEvent], None],
        *,
        detached: bool = False,
        restarts: RestartPolicy | None = None,
        liveness: LivenessPolicy | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        self._detached = detached
        self._restart_policy = restarts or RestartPolicy()
        self._liveness = liveness or LivenessPolicy()
        self._phase: FleetPhase = "Starting"
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._unsaved = False
        self._save_later: asyncio.TimerHandle | None = None
        own = identify(os.getpid())
        assert own is not None
        self._identity = own
        tokens = {worker.name: secrets.token_hex(32) for worker in plan.workers}
        salt_key = secrets.token_hex(32)
        self._endpoints = [
            {
                "uid": worker.uid,
                "name": worker.name,
                "url": worker.url,
                "token": tokens[worker.name],
                "shared_cache": plan.shared_cache,
            }
            for worker in plan.workers
        ]
        self._members = [
            self._make_member(worker, {WORKER_TOKEN_VARIABLE: tokens[worker.name]}) for worker in plan.workers
        ] + [self._make_member(router, {SALT_KEY_VARIABLE: salt_key}) for router in plan.routers]

    def _make_member(self, plan: ProcessPlan, secret: dict[str, str]) -> _Member:
        inherited = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
        environment = {**inherited, "PYTHONUNBUFFERED": "1", **plan.environment, **secret}
        path = self._folder.log_path(plan.name)
        try:
            log = LogFile(path)
        except OSError as error:
            raise unwritable(path, error) from error
        return _Member(plan, log, environment)

    def request_stop(self) -> None:
        """Drain and stop; a second call stops at once."""
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    def request_stop_at_once(self) -> None:
        """Stop without draining."""
        self._kill.set()
        self._stop.set()

    async def run(self) -> None:
        """Start every process, keep it running until a stop is requested, then stop it.

        Raises:
            CliError: a process ended or did not become ready at the first start; all are stopped again.
        """
        started = time.monotonic()
        self._folder.write_endpoints(self._endpoints)
        self._folder.write(self._state())
        keepers = [asyncio.create_task(self._keep(member), name=member.plan.name) for member in self._members]
        try:
            await self._until_ready(keepers)
            if not self._stop.is_set():
                self._phase = "Ready"
                self._save()
                seconds = time.monotonic() - started
                self._emit("FleetReady", "", f"{self._plan.name} is ready after {seconds:.1f} s")
                await self._until_stopped(keepers)
            self._emit("Stopping", "", f"{self._plan.name} is stopping; running requests may finish")
        finally:
            self._stop.set()
            await self._stop_all(keepers)
            if self._save_later is not None:
                self._save_later.cancel()
            self._folder.clear()
            for member in self._members:
                member.log.close()
        self._emit("Stopped", "", f"{self._plan.name} has stopped")

    async def _until_ready(self, keepers: Iterable["asyncio.Task[None]"]) -> None:
        waits = [asyncio.create_task(self._all_ready.wait()), asyncio.create_task(self._stop.wait())]
        try:
            done, _ = await asyncio.wait(
                [*keepers, *waits],
                timeout=self._plan.startup_timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        if not done:
            waiting = [member.plan.name for member in self._members if member.phase != "Ready"]
            raise CliError(
                f"not ready after {self._plan.startup_timeout_seconds:g} s: {', '.join(waiting)}",
                advice=f"logs: {self._folder.path}; the limit is spec.rollout.startupTimeoutSeconds",
                exit_code=ExitCode.START_FAILED,
            )
        for task in done:
            if task not in waits:
                task.result()

    async def _until_stopped(self, keepers: Iterable["asyncio.Task[None]"]) -> None:
        stop = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait([stop, *keepers], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        # A keeper ends on its own only if its process cannot be started.
        for task in done:
            task.result()

    async def _keep(self, member: _Member) -> None:
        """Run one process, and restart it whenever it ends, until the fleet stops."""
        delay: float | None = None
        while not self._stop.is_set():
            started = time.monotonic()
            code = await self._run_once(member)
            if self._stop.is_set():
                return
            if not self._all_ready.is_set():
                raise self._failed_start(member, code)
            delay = self._restart_policy.next_delay_seconds(delay, lived_seconds=time.monotonic() - started)
            member.restarts += 1
            self._set_phase(member, "Restarting")
            self._emit(
                "Restarting",
                member.plan.name,
                f"{member.plan.name} {describe_exit(code)}; restart {member.restarts} in {delay:g} s",
            )
            await self._pause(delay)

    async def _run_once(self, member: _Member) -> int:
        """Start a process, probe it, and wait for its end. Returns its exit code."""
        try:
            child = Child(member.plan.argv, environment=member.environment, log=member.log)
        except OSError as error:
            raise CliError(f"{member.plan.name} cannot be started: {error.strerror}") from error
        member.child = child
        member.identity = child.identity
        member.started_unix_seconds = time.time()
        self._set_phase(member, "Starting")
        self._emit("Started", member.plan.name, f"{member.plan.name} started, pid {child.pid}")
        probe = asyncio.create_task(self._probe(member, child))
        try:
            return await child.wait()
        finally:
            probe.cancel()
            member.child = member.identity = None
            self._set_phase(member, "Stopped")

    async def _probe(self, member: _Member, child: Child) -> None:
        """Wait until the process is ready, then probe its liveness; kill it if it hangs."""
        await self._announce_ready(member)
        failure = await until_unresponsive(member.plan.url, self._liveness)
        if self._stop.is_set():
            return  # the drain has a deadline of its own
        name = member.plan.name
        self._emit("Unresponsive", name, f"{name} hangs ({failure} from /livez); it is killed")
        # Not SIGTERM: a process that hangs does not handle it.
        child.kill()

    async def _announce_ready(self, member: _Member) -> None:
        # trust_env off: a proxy meant for the internet must not see loopback probes.
        async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_TIMEOUT_SECONDS) as client:
            while not await _answers_ready(client, member.plan.url):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(_READY_POLL_SECONDS)
        self._set_phase(member, "Ready")
        again = " again" if member.restarts else ""
        self._emit("ProcessReady", member.plan.name, f"{member.plan.name} is ready{again}")
        if all(other.phase == "Ready" for other in self._members):
            self._all_ready.set()

    async def _stop_all(self, keepers: list["asyncio.Task[None]"]) -> None:
        """Routers first: they finish their streams while the workers still answer."""
        self._phase = "Stopping"
        self._save()
        grace = self._plan.drain_timeout_seconds + _KILL_GRACE_SECONDS
        for role in ("router", "worker"):
            members = [member for member in self._members if member.plan.role == role]
            for member in members:
                if member.child is not None:
                    member.child.terminate()
            names = {member.plan.name for member in members}
            pending = [keeper for keeper in keepers if keeper.get_name() in names]
            await self._wait_or_kill(pending, members, grace)
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _wait_or_kill(
        self, keepers: list["asyncio.Task[None]"], members: list[_Member], grace_seconds: float
    ) -> None:
        finished = asyncio.gather(*keepers, return_exceptions=True)
        killed = asyncio.ensure_future(self._kill.wait())
        waits: list[asyncio.Future[Any]] = [finished, killed]
        await asyncio.wait(waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        for member in members:
            if member.child is not None:
                member.child.kill()
        await finished

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _failed_start(self, member: _Member, code: int) -> CliError:
        quoted = "".join(f"\n  | {line}" for line in worth_quoting(member.log.tail(_QUOTED_LOG_LINES)))
        return CliError(
            f"{member.plan.name} {describe_exit(code)} before it was ready{':' if quoted else ''}{quoted}",
            advice=f"the whole log is {member.log.path}",
            exit_code=ExitCode.START_FAILED,
        )

    def _set_phase(self, member: _Member, phase: ProcessPhase) -> None:
        member.phase = phase
        self._save()

    def _save(self) -> None:
        """Write the state file. If that fails, the fleet keeps running and the write is tried again."""
        if self._save_later is not None:
            self._save_later.cancel()
            self._save_later = None
        try:
            self._folder.write(self._state())
        except CliError as error:
            if not self._unsaved:
                text = f"{error}; `warmfleet status` shows the state before that"
                self._emit("StateUnsaved", "", text)
            self._unsaved = True
            self._save_later = asyncio.get_running_loop().call_later(_SAVE_RETRY_SECONDS, self._save)
        else:
            self._unsaved = False

    def _state(self) -> FleetState:
        return FleetState(
            name=self._plan.name,
            phase=self._phase,
            supervisor=self._identity,
            detached=self._detached,
            urls=self._plan.urls,
            served_names=list(self._plan.served_names),
            drain_timeout_seconds=self._plan.drain_timeout_seconds,
            processes=[member.state() for member in self._members],
            autoscaling=self._plan.autoscaling,
        )

    def _emit(self, kind: EventKind, process: str, text: str) -> None:
        # The callback writes to a file, and the disk may be full.
        with contextlib.suppress(OSError):
            self._report(FleetEvent(kind=kind, process=process, text=text))


def supervise(
    plan: FleetPlan,
    folder: RunFolder,
    report: Callable[[FleetEvent], None],
    *,
    detached: bool = False,
    restarts: RestartPolicy | None = None,
    liveness: LivenessPolicy | None = None,
) -> None:
    """Run a fleet in this process until SIGINT, SIGTERM or SIGHUP drain it, or SIGQUIT ends it at once.

    Call on the main thread.

    Raises:
        CliError: the name is taken, or the fleet did not start.
    """

    async def run() -> None:
        supervisor = Supervisor(plan, folder, report, detached=detached, restarts=restarts, liveness=liveness)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.request_stop)
        loop.add_signal_handler(STOP_AT_ONCE_SIGNAL, supervisor.request_stop_at_once)
        await supervisor.run()

    with folder.locked():
        asyncio.run(run())


def describe_exit(code: int) -> str:
    """`was killed by SIGKILL`, `exited with code 2`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def _answers_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/readyz")).status_code == 200
    except httpx.HTTPError:
        return False
