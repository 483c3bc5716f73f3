"""One container of a pod, through all its runs: configure, start, probe, restart, stop."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from warmfleet_devcluster.clock import rfc3339
from warmfleet_devcluster.node.container.container_process import ContainerProcess, LaunchSpec, Mount
from warmfleet_devcluster.node.container.container_state import (
    ContainerState,
    ContainerView,
    Running,
    Terminated,
    Waiting,
)
from warmfleet_devcluster.node.container.environment import (
    References,
    command_line,
    environment,
    expand,
    referenced_names,
)
from warmfleet_devcluster.node.container.identity import identity
from warmfleet_devcluster.node.container.log_file import LogWriter, last_words
from warmfleet_devcluster.node.container.pod_context import PodEnvironment
from warmfleet_devcluster.node.container.probe_state import ProbeState, ProbeTiming, Verdict
from warmfleet_devcluster.node.container.probes import ProbeError, Prober
from warmfleet_devcluster.node.errors import (
    ContainerConfigError,
    ImageError,
    NodeError,
    StartError,
    VolumeError,
)
from warmfleet_devcluster.node.host.machine_paths import accelerator_devices, reachable_paths

Json = dict[str, Any]

_MAX_MESSAGE_BYTES: Final = 4096
_TERMINATION_LOG: Final = "/dev/termination-log"
_KILLED: Final = 137


class ContainerRunner:
    """Runs one container until its restart policy is done with it or `stop` ends it."""

    def __init__(
        self,
        container: Json,
        shared: PodEnvironment,
        *,
        restart_policy: str,
        sidecar: bool = False,
        before: Json | None = None,
    ) -> None:
        """`before` is the container's status by an earlier process of this node, whose run counts."""
        self.name: str = container["name"]
        self._container = container
        self._shared = shared
        self._restart_policy = restart_policy
        self._sidecar = sidecar
        self._state: ContainerState = Waiting("ContainerCreating")
        self._last: Terminated | None = None
        ran_before = before is not None and "waiting" not in before.get("state", {"waiting": {}})
        self._restarts: int = (before or {}).get("restartCount", 0) + (1 if ran_before else 0)
        self._failures = 0
        self._ready = False
        self._started = False
        self._id = ""
        self._stopping = asyncio.Event()
        self._process: ContainerProcess | None = None
        self._prober: Prober | None = None
        self.has_started = asyncio.Event()
        """Set once the container has started for the first time (its startup probe included)."""
        self._inside: Json = {}

    def wait_because(self, reason: str, message: str = "") -> None:
        """Shown while the pod is not yet that far."""
        self._become(Waiting(reason, message))

    def view(self) -> ContainerView:
        return ContainerView(
            name=self.name,
            image=self._container.get("image", ""),
            state=self._state,
            last=self._last,
            restart_count=self._restarts,
            ready=self._ready,
            started=self._started,
            container_id=self._id,
            restarts_always=self._sidecar,
        )

    @property
    def process(self) -> ContainerProcess | None:
        """The program that runs now."""
        return self._process

    def inside(self) -> Json:
        """Fields of LaunchSpec for a command inside this container, without argv."""
        return dict(self._inside)

    def log_path(self, *, previous: bool = False) -> Path | None:
        """The log of this run or the one before; None if there is none."""
        run = self._restarts - 1 if previous or self._between_runs() else self._restarts
        path = self._folder() / f"{run}.log"
        return path if run >= 0 and path.exists() else None

    async def run(self) -> None:
        """Returns when the container will not run again. Never raises for what a manifest can cause."""
        while not self._stopping.is_set():
            try:
                spec = await self._configure()
            except ImageError as error:
                await self._hold("ErrImagePull", str(error))
                continue
            except ContainerConfigError as error:
                await self._hold("CreateContainerConfigError", str(error))
                continue
            except (VolumeError, NodeError, OSError) as error:
                await self._hold("CreateContainerError", str(error))
                continue
            ended, ran_seconds = await self._run_once(spec)
            again = self._restart_policy == "Always" or (
                self._restart_policy == "OnFailure" and ended.exit_code != 0
            )
            if not again or self._stopping.is_set():
                return
            self._failures = 1 if self._shared.backoff.forgets(ran_seconds) else self._failures + 1
            delay_seconds = self._shared.backoff.delay_seconds(self._failures)
            if delay_seconds > 0:
                self._last = ended
                pod = self._shared.pod["metadata"]
                self._become(
                    Waiting(
                        "CrashLoopBackOff",
                        f"back-off {delay_seconds:g}s restarting failed container={self.name} "
                        f"pod={pod['name']}_{pod['namespace']}({pod['uid']})",
                    )
                )
                if await self._stopped_within(delay_seconds):
                    self._become(ended)
                    return
            self._last = ended
            self._forget_old_logs()
            self._restarts += 1

    async def stop(self, grace_seconds: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period is over. `run` returns soon after."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        self._stopping.set()
        process = self._process
        if process is None:
            return
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook and self._prober and grace_seconds > 0:
            with contextlib.suppress(ProbeError, NodeError):
                await self._prober.attempt(hook, grace_seconds)
        process.signal(_stop_signal(self._container))
        # The kubelet leaves a container two seconds even when its hook has used up the grace period.
        left_seconds = max(deadline - loop.time(), 2.0 if hook and grace_seconds > 0 else 0.0)
        waiting = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({waiting}, timeout=left_seconds)
        finally:
            process.kill()
            waiting.cancel()

    def kill(self) -> None:
        """Ends the program at once, without asking."""
        self._stopping.set()
        if self._process:
            self._process.kill()

    async def _hold(self, reason: str, message: str) -> None:
        """Waits before the next attempt, visibly."""
        if (
            reason == "ErrImagePull"
            and isinstance(self._state, Waiting)
            and self._state.reason == "ErrImagePull"
        ):
            image = self._container.get("image", "")
            reason, message = "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'
        elif (
            reason == "ErrImagePull"
            and isinstance(self._state, Waiting)
            and self._state.reason == "ImagePullBackOff"
        ):
            reason, message = self._state.reason, self._state.message
        self._become(Waiting(reason, message))
        await self._stopped_within(self._shared.retry_seconds)

    async def _configure(self) -> LaunchSpec:
        shared = self._shared
        image = shared.images.find(self._container.get("image", ""))
        references = await self._references()
        who = identity(
            shared.pod["spec"].get("securityContext") or {},
            self._container.get("securityContext") or {},
            image.user,
        )
        env = environment(
            self._container, shared.context, references, image_env=image.env, cluster_env=shared.cluster_env
        )
        env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        env.setdefault("HOME", "/root" if who.uid == 0 else "/")
        env["HOSTNAME"] = shared.pod["metadata"]["name"][:63]
        line = command_line(self._container, env, image.entrypoint, image.args)
        workdir = self._container.get("workingDir") or image.workdir
        self._inside = {
            "env": env,
            "uid": who.uid,
            "gid": who.gid,
            "groups": list(who.groups),
            "capabilities": list(who.capabilities),
            "no_new_privileges": who.no_new_privileges,
            "workdir": workdir,
        }
        mounts = [
            Mount(mount.source, expand(mount.target, env), mount.read_only)
            for mount in shared.volumes.mounts(self._container)
        ]
        scratch = self._folder() / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        message = self._folder() / "message"
        message.write_bytes(b"")
        message.chmod(0o666)
        target = self._container.get("terminationMessagePath", _TERMINATION_LOG)
        return LaunchSpec(
            argv=line,
            **self._inside,
            network=shared.network.namespace_fd if shared.network else -1,
            hostname=env["HOSTNAME"],
            scratch=str(scratch),
            read_only_root=who.read_only_root,
            paths=reachable_paths(image),
            files=dict(shared.files or {}),
            mounts=[*mounts, Mount(str(message), target, read_only=False)],
            devices=accelerator_devices(self._container),
        )

    async def _references(self) -> References:
        try:
            return await self._shared.objects.references(*referenced_names(self._container))
        except VolumeError as error:
            raise ContainerConfigError(str(error)) from error

    async def _run_once(self, spec: LaunchSpec) -> tuple[Terminated, float]:
        """One run from start to end, and how long it took."""
        self._id = f"process://{uuid.uuid4().hex}"
        started_at = rfc3339()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        log = LogWriter(self._folder() / f"{self._restarts}.log")
        try:
            process = await ContainerProcess.start_logged(spec, log)
        except StartError as error:
            ended = Terminated(128, "StartError", started_at, rfc3339(), self._id, str(error))
            self._become(ended)
            return ended, 0.0
        shared = self._shared
        self._process = process
        self._prober = Prober(
            shared.probe_session, self._container, shared.context.pod_ip, process, self._inside
        )
        self._become(Running(started_at))
        probing = asyncio.create_task(self._probe(self._prober, process))
        try:
            if self._stopping.is_set():  # asked to stop while the program was starting
                process.kill()
            code = await process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            self._process = None
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            self._ready = self._started = False
        ended = Terminated(
            code, "Completed" if code == 0 else "Error", started_at, rfc3339(), self._id, self._message(code)
        )
        self._become(ended)
        return ended, loop.time() - begun

    async def _probe(self, prober: Prober, process: ContainerProcess) -> None:
        """Startup first, then readiness and liveness side by side, until cancelled."""
        if "startupProbe" in self._container:
            verdict = await self._until_verdict(prober, "startupProbe")
            if verdict is Verdict.FAILURE:
                await self._kill_unhealthy(process)
                return
        self._started = True
        self._ready = "readinessProbe" not in self._container
        self.has_started.set()
        self._shared.changed()
        async with asyncio.TaskGroup() as both:
            if "readinessProbe" in self._container:
                both.create_task(self._follow_readiness(prober))
            if "livenessProbe" in self._container:
                both.create_task(self._follow_liveness(prober, process))

    async def _follow_readiness(self, prober: Prober) -> None:
        async for state in self._results(prober, "readinessProbe"):
            ready = state.verdict is Verdict.SUCCESS
            if ready != self._ready:
                self._ready = ready
                self._shared.changed()

    async def _follow_liveness(self, prober: Prober, process: ContainerProcess) -> None:
        verdict = await self._until_verdict(prober, "livenessProbe", only=Verdict.FAILURE)
        # A container that is being stopped is not killed for being slow about it.
        if verdict is Verdict.FAILURE and not self._stopping.is_set():
            await self._kill_unhealthy(process)

    async def _until_verdict(self, prober: Prober, kind: str, only: Verdict | None = None) -> Verdict:
        async for state in self._results(prober, kind):
            if state.verdict is only or (only is None and state.verdict is not Verdict.UNKNOWN):
                return state.verdict
        raise AssertionError("probing ends by a verdict or by cancellation")

    async def _results(self, prober: Prober, kind: str) -> AsyncIterator[ProbeState]:
        probe = self._container[kind]
        timing = ProbeTiming.of(probe)
        state = ProbeState.initial(kind)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(timing.initial_delay_seconds)
        while True:
            began = loop.time()
            try:
                await prober.attempt(probe, timing.timeout_seconds)
                state = state.after(timing, succeeded=True)
            except NodeError:
                state = state.after(timing, succeeded=False)
            yield state
            # A first failure right after the start is not worth a whole period: the kubelet probes a new
            # container at once, too, and again after its period.
            await asyncio.sleep(max(0.0, began + timing.period_seconds - loop.time()))

    async def _kill_unhealthy(self, process: ContainerProcess) -> None:
        grace_seconds = self._shared.pod["spec"].get("terminationGracePeriodSeconds", 30)
        process.signal(_stop_signal(self._container))
        await asyncio.sleep(grace_seconds)
        process.kill()

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _become(self, state: ContainerState) -> None:
        if state != self._state:
            self._state = state
            self._shared.changed()

    def _message(self, code: int) -> str:
        try:
            with (self._folder() / "message").open("rb") as file:
                said = file.read(_MAX_MESSAGE_BYTES)
            if (
                not said
                and code != 0
                and self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
            ):
                said = last_words(self._folder() / f"{self._restarts}.log")
            return said.decode(errors="replace")
        except OSError:
            return ""

    def _between_runs(self) -> bool:
        return self._process is None and not (self._folder() / f"{self._restarts}.log").exists()

    def _forget_old_logs(self) -> None:
        # This run's log becomes the previous one; the one before goes.
        for suffix in ("", ".1"):
            (self._folder() / f"{self._restarts - 1}.log{suffix}").unlink(missing_ok=True)

    def _folder(self) -> Path:
        return self._shared.folder / "containers" / self.name


def _stop_signal(container: Json) -> signal.Signals:
    name = container.get("lifecycle", {}).get("stopSignal", "SIGTERM")
    return signal.Signals.__members__.get(name, signal.SIGTERM)
