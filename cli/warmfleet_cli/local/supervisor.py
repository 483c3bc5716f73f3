"""Starts the processes of one local fleet, scales its workers, and stops all of them when it ends."""

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.autoscaler import TICK_SECONDS
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.events import EventKind, FleetEvent
from warmfleet_cli.local.liveness import LivenessPolicy
from warmfleet_cli.local.members import Members
from warmfleet_cli.local.plan import FleetPlan
from warmfleet_cli.local.scaling_loop import ScalingLoop
from warmfleet_cli.local.state import FleetPhase, FleetState, RunFolder, ScaleChange
from warmfleet_runtime.process_identity import identify

_SAVE_RETRY_SECONDS: Final = 2.0
MAX_CHANGES: Final = 10

STOP_AT_ONCE_SIGNAL: Final = signal.SIGQUIT
"""Not a second SIGTERM: two SIGTERM in a row may arrive as one."""


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
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        self._detached = detached
        self._tick_seconds = tick_seconds
        self._phase: FleetPhase = "Starting"
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._unsaved = False
        self._save_later: asyncio.TimerHandle | None = None
        own = identify(os.getpid())
        assert own is not None
        self._identity = own
        self._changes: deque[ScaleChange] = deque(maxlen=MAX_CHANGES)
        self._members = Members(
            plan,
            folder,
            emit=self._emit,
            on_change=self._member_changed,
            must_start=lambda: not self._all_ready.is_set(),
            kill=self._kill,
            restarts=restarts or RestartPolicy(),
            liveness=liveness or LivenessPolicy(),
        )

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
        scaling: asyncio.Task[None] | None = None
        try:
            self._members.start()
            self._folder.write(self._state())
            await self._until_ready()
            if not self._stop.is_set():
                self._phase = "Ready"
                self._save()
                seconds = time.monotonic() - started
                self._emit("FleetReady", "", f"{self._plan.name} is ready after {seconds:.1f} s")
                if self._plan.scales:
                    scaling = asyncio.create_task(self._scaling().run(), name="autoscaling")
                await self._stop.wait()
            self._emit("Stopping", "", f"{self._plan.name} is stopping; running requests may finish")
        finally:
            self._stop.set()
            if scaling is not None:
                scaling.cancel()
                await asyncio.gather(scaling, return_exceptions=True)
            self._phase = "Stopping"
            self._save()
            await self._members.stop()
            if self._save_later is not None:
                self._save_later.cancel()
            self._folder.clear()
            self._members.close()
        self._emit("Stopped", "", f"{self._plan.name} has stopped")

    def _scaling(self) -> ScalingLoop:
        return ScalingLoop(
            self._plan,
            self._members,
            emit=self._emit,
            on_scaled=self._scaled,
            tick_seconds=self._tick_seconds,
        )

    def _scaled(self, change: ScaleChange) -> None:
        self._changes.append(change)
        self._save()

    def _member_changed(self) -> None:
        if all(member.phase == "Ready" for member in self._members):
            self._all_ready.set()
        self._save()

    async def _until_ready(self) -> None:
        waits = [asyncio.create_task(self._all_ready.wait()), asyncio.create_task(self._stop.wait())]
        try:
            done, _ = await asyncio.wait(
                [*self._members.keepers.values(), *waits],
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
            processes=[member.state() for member in self._members.in_order()],
            autoscaling=self._plan.autoscaling,
            scales=self._plan.scales,
            changes=list(self._changes),
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
    tick_seconds: float = TICK_SECONDS,
) -> None:
    """Run a fleet in this process until SIGINT, SIGTERM or SIGHUP drain it, or SIGQUIT ends it at once.

    Call on the main thread.

    Raises:
        CliError: the name is taken, or the fleet did not start.
    """

    async def run() -> None:
        supervisor = Supervisor(
            plan,
            folder,
            report,
            detached=detached,
            restarts=restarts,
            liveness=liveness,
            tick_seconds=tick_seconds,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.request_stop)
        loop.add_signal_handler(STOP_AT_ONCE_SIGNAL, supervisor.request_stop_at_once)
        await supervisor.run()

    with folder.locked():
        asyncio.run(run())
