"""One container of a pod, through all its runs: configure, start, probe, restart, stop."""

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmfleet_devcluster.clock import rfc3339
from warmfleet_devcluster.node.container.environment import (
    command_line,
    environment,
    expand,
    referenced_names,
)
from warmfleet_devcluster.node.container.identity import identity
from warmfleet_devcluster.node.container.log_file import LogWriter, log_tail
from warmfleet_devcluster.node.container.pod_environment import PodEnvironment, PodSandbox
from warmfleet_devcluster.node.container.probe_state import Verdict
from warmfleet_devcluster.node.container.probes import ProbeError, Prober
from warmfleet_devcluster.node.container.process import ContainerProcess, LaunchSpec
from warmfleet_devcluster.node.container.state import (
    ContainerState,
    ContainerView,
    Running,
    Terminated,
    Waiting,
)
from warmfleet_devcluster.node.errors import (
    ContainerConfigError,
    ImageError,
    NodeError,
    StartError,
    VolumeError,
)
from warmfleet_devcluster.node.host.machine_paths import accelerator_devices, reachable_paths
from warmfleet_devcluster.node.references.config_objects import ConfigObjects
from warmfleet_devcluster.node.volumes.mount import Mount

Json = dict[str, Any]

_MAX_MESSAGE_BYTES: Final = 4096
_TERMINATION_LOG: Final = "/dev/termination-log"
_SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class _Run:
    """The program that runs now, and what probes it."""

    process: ContainerProcess
    prober: Prober


class ContainerRunner:
    """Runs one container until its restart policy asks for no further run or `stop` ends it."""

    def __init__(
        self,
        container: Json,
        shared: PodEnvironment,
        *,
        restart_policy: str,
        sidecar: bool = False,
        before: Json | None = None,
    ) -> None:
        """`before` is the status that an earlier process of this node wrote; its run counts as a restart."""
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
        self._current: _Run | None = None
        """None between two runs."""
        self.has_started = asyncio.Event()
        """Set once the container has started for the first time (its startup probe included)."""

    def wait_because(self, reason: str, message: str = "") -> None:
        """Shows the container as Waiting, before its first run."""
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
        """The program that runs now; None between two runs."""
        return self._current.process if self._current else None

    def log_path(self, *, previous: bool = False) -> Path | None:
        """The log of this run or the one before; None if there is none."""
        run = self._restarts - 1 if previous or self._between_runs() else self._restarts
        path = self._folder() / f"{run}.log"
        return path if run >= 0 and path.exists() else None

    async def run(self, sandbox: PodSandbox) -> None:
        """Returns when the container will not run again. Never raises for what a manifest can cause."""
        while not self._stopping.is_set():
            try:
                spec = await self._configure(sandbox)
            except ImageError as error:
                await self._wait_to_retry("ErrImagePull", str(error))
                continue
            except ContainerConfigError as error:
                await self._wait_to_retry("CreateContainerConfigError", str(error))
                continue
            except (VolumeError, NodeError, OSError) as error:
                await self._wait_to_retry("CreateContainerError", str(error))
                continue
            ended, ran_seconds = await self._run_once(spec, sandbox.network.address)
            again = self._restart_policy == "Always" or (
                self._restart_policy == "OnFailure" and ended.exit_code != 0
            )
            if not again or self._stopping.is_set():
                return
            self._failures = 1 if self._shared.backoff.forgets(ran_seconds) else self._failures + 1
            delay_seconds = self._shared.backoff.delay_seconds(self._failures)
            if delay_seconds > 0:
                self._last = ended
                pod = self._shared.pod()["metadata"]
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
        current = self._current
        if current is None:
            return
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook and grace_seconds > 0:
            with contextlib.suppress(ProbeError, NodeError):
                await current.prober.attempt(hook, grace_seconds)
        process = current.process
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
        """Ends the program at once, by SIGKILL."""
        self._stopping.set()
        if self._current:
            self._current.process.kill()

    async def _wait_to_retry(self, reason: str, message: str) -> None:
        """Shows why the container waits, and returns when the next attempt is due."""
        if reason == "ErrImagePull" and isinstance(self._state, Waiting):
            if self._state.reason == "ErrImagePull":
                image = self._container.get("image", "")
                reason = "ImagePullBackOff"
                message = f'Back-off pulling image "{image}": ErrImagePull: {message}'
            elif self._state.reason == "ImagePullBackOff":
                message, reason = self._state.message, self._state.reason
        self._become(Waiting(reason, message))
        await self._stopped_within(self._shared.retry_seconds)

    async def _configure(self, sandbox: PodSandbox) -> LaunchSpec:
        shared = self._shared
        pod = shared.pod()
        image = shared.images.find(self._container.get("image", ""))
        objects = await self._config_objects()
        user = identity(
            pod["spec"].get("securityContext") or {},
            self._container.get("securityContext") or {},
            image.user,
        )
        env = environment(
            self._container,
            shared.context(sandbox.network.address),
            objects,
            image_env=image.env,
            cluster_env=shared.cluster_env,
        )
        env.setdefault("PATH", _SEARCH_PATH)
        env.setdefault("HOME", "/root" if user.uid == 0 else "/")
        env["HOSTNAME"] = pod["metadata"]["name"][:63]
        scratch = self._folder() / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        return LaunchSpec(
            argv=command_line(self._container, env, image.entrypoint, image.args),
            env=env,
            uid=user.uid,
            gid=user.gid,
            groups=list(user.groups),
            capabilities=list(user.capabilities),
            no_new_privileges=user.no_new_privileges,
            workdir=self._container.get("workingDir") or image.workdir,
            network=sandbox.network.namespace_fd,
            hostname=env["HOSTNAME"],
            scratch=str(scratch),
            read_only_root=user.read_only_root,
            paths=reachable_paths(image),
            files=dict(sandbox.etc_files),
            mounts=[*self._mounts(env), self._termination_log()],
            devices=accelerator_devices(self._container),
        )

    def _mounts(self, env: Mapping[str, str]) -> list[Mount]:
        return [
            Mount(mount.source, expand(mount.target, env), mount.read_only)
            for mount in self._shared.volumes.mounts(self._container)
        ]

    def _termination_log(self) -> Mount:
        """An empty file that the program may write its termination message to."""
        message = self._folder() / "message"
        message.write_bytes(b"")
        message.chmod(0o666)
        target = self._container.get("terminationMessagePath", _TERMINATION_LOG)
        return Mount(str(message), target, read_only=False)

    async def _config_objects(self) -> ConfigObjects:
        try:
            return await self._shared.objects.config_objects(*referenced_names(self._container))
        except VolumeError as error:
            raise ContainerConfigError(str(error)) from error

    async def _run_once(self, spec: LaunchSpec, pod_ip: str) -> tuple[Terminated, float]:
        """One run from start to end, and the seconds it took."""
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
        prober = Prober(self._shared.probe_session, self._container, pod_ip, process)
        self._current = _Run(process, prober)
        self._become(Running(started_at))
        probing = asyncio.create_task(self._probe(prober, process))
        try:
            if self._stopping.is_set():  # asked to stop while the program was starting
                process.kill()
            code = await process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            self._current = None
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            self._ready = self._started = False
        ended = Terminated(
            code,
            "Completed" if code == 0 else "Error",
            started_at,
            rfc3339(),
            self._id,
            self._termination_message(code),
        )
        self._become(ended)
        return ended, loop.time() - begun

    async def _probe(self, prober: Prober, process: ContainerProcess) -> None:
        """Startup first, then readiness and liveness side by side, until cancelled."""
        if "startupProbe" in self._container and await prober.failed("startupProbe"):
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
        async for state in prober.results("readinessProbe"):
            ready = state.verdict is Verdict.SUCCESS
            if ready != self._ready:
                self._ready = ready
                self._shared.changed()

    async def _follow_liveness(self, prober: Prober, process: ContainerProcess) -> None:
        async for state in prober.results("livenessProbe"):
            if state.verdict is Verdict.FAILURE:
                break
        # A container that is being stopped is not killed for being slow about it.
        if not self._stopping.is_set():
            await self._kill_unhealthy(process)

    async def _kill_unhealthy(self, process: ContainerProcess) -> None:
        grace_seconds = self._shared.pod()["spec"].get("terminationGracePeriodSeconds", 30)
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

    def _termination_message(self, code: int) -> str:
        falls_back = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        try:
            with (self._folder() / "message").open("rb") as file:
                message = file.read(_MAX_MESSAGE_BYTES)
            if not message and code != 0 and falls_back:
                message = log_tail(self._folder() / f"{self._restarts}.log")
            return message.decode(errors="replace")
        except OSError:
            return ""

    def _between_runs(self) -> bool:
        return self._current is None and not (self._folder() / f"{self._restarts}.log").exists()

    def _forget_old_logs(self) -> None:
        # This run's log becomes the previous one; the one before goes.
        for suffix in ("", ".1"):
            (self._folder() / f"{self._restarts - 1}.log{suffix}").unlink(missing_ok=True)

    def _folder(self) -> Path:
        return self._shared.folder / "containers" / self.name


def _stop_signal(container: Json) -> signal.Signals:
    name = container.get("lifecycle", {}).get("stopSignal", "SIGTERM")
    return signal.Signals.__members__.get(name, signal.SIGTERM)
