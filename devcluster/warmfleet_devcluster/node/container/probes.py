"""Probes of one container, carried out: HTTP, TCP or a command inside it. Also what preStop hooks do."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from warmfleet_devcluster.node.container.probe_state import ProbeState, ProbeTiming, Verdict
from warmfleet_devcluster.node.container.process import ContainerProcess
from warmfleet_devcluster.node.errors import NodeError

Json = dict[str, Any]

_MAX_MESSAGE_BYTES: Final = 1024


class ProbeError(NodeError):
    """A probe failed; the text gives the reason."""


class Prober:
    """Probes one run of a container, at the pod's address."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        container: Json,
        pod_ip: str,
        process: ContainerProcess,
    ) -> None:
        self._session = session
        self._container = container
        self._pod_ip = pod_ip
        self._process = process
        self._ports = {
            port["name"]: port["containerPort"] for port in container.get("ports", []) if "name" in port
        }

    async def attempt(self, action: Json, timeout_seconds: float) -> None:
        """Carries out a probe or a hook. Raises ProbeError unless it succeeds in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if "httpGet" in action:
                    await self._get(action["httpGet"])
                elif "tcpSocket" in action:
                    await self._connect(action["tcpSocket"])
                elif "exec" in action:
                    await self._run(action["exec"]["command"])
                elif "sleep" in action:
                    await asyncio.sleep(action["sleep"]["seconds"])
                else:
                    raise ProbeError(f"not supported by process nodes: {sorted(action)}")
        except TimeoutError as error:
            raise ProbeError(f"no answer within {timeout_seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProbeError(str(error) or repr(error)) from error

    async def results(self, kind: str) -> AsyncIterator[ProbeState]:
        """The state after each attempt of a probe (such as `livenessProbe`), while it is iterated."""
        probe = self._container[kind]
        timing = ProbeTiming.of(probe)
        state = ProbeState.initial(kind)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(timing.initial_delay_seconds)
        while True:
            began = loop.time()
            try:
                await self.attempt(probe, timing.timeout_seconds)
                state = state.after(timing, succeeded=True)
            except NodeError:
                state = state.after(timing, succeeded=False)
            yield state
            # A first failure right after the start is not worth a whole period: the kubelet probes a new
            # container at once, too, and again after its period.
            await asyncio.sleep(max(0.0, began + timing.period_seconds - loop.time()))

    async def failed(self, kind: str) -> bool:
        """Probes until the verdict is clear: True for a failure, False for a success."""
        async for state in self.results(kind):
            if state.verdict is not Verdict.UNKNOWN:
                return state.verdict is Verdict.FAILURE
        raise AssertionError("probing ends by a verdict or by cancellation")

    async def _get(self, action: Json) -> None:
        scheme = action.get("scheme", "HTTP").lower()
        host = action.get("host") or self._pod_ip
        path = action.get("path", "/")
        url = f"{scheme}://{host}:{self._port(action['port'])}{path if path.startswith('/') else '/' + path}"
        headers = {"User-Agent": "kube-probe/1.36", "Connection": "close"}
        headers |= {header["name"]: header["value"] for header in action.get("httpHeaders", [])}
        # As the kubelet: the certificate of a probed container is not verified.
        tls = _unverified() if scheme == "https" else True
        async with self._session.get(url, headers=headers, allow_redirects=False, ssl=tls) as response:
            if not 200 <= response.status < 400:
                body = (await response.content.read(_MAX_MESSAGE_BYTES)).decode(errors="replace")
                raise ProbeError(f"HTTP probe failed with statuscode: {response.status} {body}".rstrip())

    async def _connect(self, action: Json) -> None:
        host = action.get("host") or self._pod_ip
        _, writer = await asyncio.open_connection(host, self._port(action["port"]))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _run(self, command: list[str]) -> None:
        started = await self._process.run_inside(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            assert started.stdout is not None
            output = await started.stdout.read(_MAX_MESSAGE_BYTES)
            while await started.stdout.read(64 << 10):
                pass
            code = await started.wait()
        except BaseException:
            started.kill()
            raise
        if code != 0:
            raise ProbeError(f"command exited with {code}: {output.decode(errors='replace')}".rstrip())

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        if port in self._ports:
            return int(self._ports[port])
        raise ProbeError(f"the container has no port named {port}")


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
