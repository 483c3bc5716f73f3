"""One process of a local fleet, over all its restarts: started, watched, restarted, drained."""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.backoff import RestartPolicy
from warmfleet_cli.local.child import Child
from warmfleet_cli.local.events import Emit
from warmfleet_cli.local.liveness import LivenessPolicy, until_unresponsive
from warmfleet_cli.local.log_file import LogFile, worth_quoting
from warmfleet_cli.local.plan import ProcessPlan
from warmfleet_cli.local.state import ProcessPhase, ProcessState

_READY_POLL_SECONDS: Final = 0.1
_PROBE_TIMEOUT_SECONDS: Final = 5.0
_QUOTED_LOG_LINES: Final = 8


class Member:
    """Keeps one process running until it has to leave.

    keeper = asyncio.create_task(member.keep(must_start=lambda: False))
    member.leave()  # drains it
    await keeper
    """

    def __init__(
        self,
        plan: ProcessPlan,
        *,
        environment: Mapping[str, str],
        log: LogFile,
        emit: Emit,
        on_change: Callable[[], None],
        restarts: RestartPolicy,
        liveness: LivenessPolicy,
    ) -> None:
        """`on_change` is called whenever `state` returns something else."""
        self.plan = plan
        self.phase: ProcessPhase = "Starting"
        self.created_unix_seconds = time.time()
        self.was_ready = False
        """Since its first start."""
        self._environment = environment
        self._log = log
        self._emit = emit
        self._on_change = on_change
        self._restart_policy = restarts
        self._liveness = liveness
        self._child: Child | None = None
        self._restarts = 0
        self._started_unix_seconds = 0.0
        self._ready_after_seconds: float | None = None
        self._leaving = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        """Whether it drains or has ended for good."""
        return self._leaving.is_set()

    @property
    def fails_to_start(self) -> bool:
        """Whether it has ended at least once and was never ready."""
        return self._restarts > 0 and not self.was_ready

    def state(self) -> ProcessState:
        """For the state file."""
        return ProcessState(
            name=self.plan.name,
            role=self.plan.role,
            url=self.plan.url,
            port=self.plan.port,
            log_path=str(self._log.path),
            phase=self.phase,
            identity=self._child.identity if self._child is not None else None,
            restarts=self._restarts,
            started_unix_seconds=self._started_unix_seconds,
            ready_after_seconds=self._ready_after_seconds,
        )

    def leave(self) -> None:
        """Send SIGTERM, once: the process finishes what runs and ends; `keep` returns then."""
        if not self._leaving.is_set():
            self._leaving.set()
            if self._child is not None:
                self._child.terminate()
                self._set_phase("Draining")

    def kill(self) -> None:
        """End the process at once; without `leave` it is started again."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Close its log, after `keep` has returned."""
        self._log.close()

    async def keep(self, *, must_start: Callable[[], bool]) -> None:
        """Run the process, and restart it whenever it ends, until it leaves.

        Raises:
            CliError: it ended while `must_start()`.
        """
        delay: float | None = None
        while not self._leaving.is_set():
            started = time.monotonic()
            ended = await self._run_once()
            if self._leaving.is_set():
                return
            if must_start():
                raise self._failed_start(ended)
            delay = self._restart_policy.next_delay_seconds(delay, lived_seconds=time.monotonic() - started)
            self._restarts += 1
            self._set_phase("Restarting")
            name = self.plan.name
            self._emit("Restarting", name, f"{name} {ended}; restart {self._restarts} in {delay:g} s")
            await self._pause(delay)

    async def _run_once(self) -> str:
        """Start the process and wait until it ends; returns how it did."""
        name = self.plan.name
        try:
            child = Child(self.plan.argv, environment=self._environment, log=self._log)
        except OSError as error:
            return f"cannot be started: {(error.strerror or str(error)).lower()}"
        self._child = child
        self._started_unix_seconds = time.time()
        self._ready_after_seconds = None
        self._set_phase("Starting")
        self._emit("Started", name, f"{name} started, pid {child.pid}")
        probe = asyncio.create_task(self._probe(child))
        try:
            return describe_exit(await child.wait())
        finally:
            probe.cancel()
            self._child = None
            self._set_phase("Stopped")

    async def _probe(self, child: Child) -> None:
        """Wait until the process is ready, then probe its liveness; kill it if it hangs."""
        await self._announce_ready()
        failure = await until_unresponsive(self.plan.url, self._liveness)
        if self._leaving.is_set():
            return  # the drain has a deadline of its own
        name = self.plan.name
        self._emit("Unresponsive", name, f"{name} hangs ({failure} from /livez); it is killed")
        # Not SIGTERM: a process that hangs does not handle it.
        child.kill()

    async def _announce_ready(self) -> None:
        # trust_env off: a proxy meant for the internet must not see loopback probes.
        async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_TIMEOUT_SECONDS) as client:
            while not await _answers_ready(client, self.plan.url):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(_READY_POLL_SECONDS)
        if self._leaving.is_set():
            return
        seconds = time.time() - self._started_unix_seconds
        self.was_ready = True
        self._ready_after_seconds = round(seconds, 3)
        self._set_phase("Ready")
        again = " again" if self._restarts else ""
        name = self.plan.name
        self._emit("ProcessReady", name, f"{name} is ready{again} after {seconds:.1f} s")

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._leaving.wait(), seconds)
        except TimeoutError:
            return

    def _failed_start(self, ended: str) -> CliError:
        quoted = "".join(f"\n  | {line}" for line in worth_quoting(self._log.tail(_QUOTED_LOG_LINES)))
        return CliError(
            f"{self.plan.name} {ended} before it was ready{':' if quoted else ''}{quoted}",
            advice=f"the whole log is {self._log.path}",
            exit_code=ExitCode.START_FAILED,
        )

    def _set_phase(self, phase: ProcessPhase) -> None:
        self.phase = phase
        self._on_change()


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
