"""Many ModelDeployments on hollow nodes, and the chart's operator that has them to look after.

The operator runs as the chart installs it, in a pod of a process node with the rights of its ServiceAccount.
Workers are hollow pods, and so are the routers; `hollow_router` reports for them which workers are ready.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.names import API_VERSION, KIND, MODEL_DEPLOYMENT_LABEL, PLURAL
from warmfleet_devcluster.hollow import HOLLOW_LABEL
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_testing.cluster.cluster import DevCluster, running_cluster
from warmfleet_testing.cluster.control_plane import AuditWrite

NAMESPACE: Final = "warmfleet-scale"
CHART: Final = Path(__file__).parents[4] / "charts" / "warmfleet"
_MODEL_NAMESPACES: Final = 4
_REQUESTS_AT_ONCE: Final = 16
_OPERATOR_USER: Final = f"system:serviceaccount:{NAMESPACE}:warmfleet-operator"
_OPERATOR: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_OPERATOR_LABELS: Final = "app.kubernetes.io/component=operator"
_ALL: Final = f"/apis/{API_VERSION}/{PLURAL}"
_VALUES: Final = {
    "operator": {"replicas": 1, "nodeSelector": {"kubernetes.io/hostname": "node-0"}},
    "router": {"replicas": 1, "nodeSelector": {HOLLOW_LABEL: "true"}},
    "rbac": {"scope": "Cluster"},
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    resident_bytes: int
    peak_resident_bytes: int
    cpu_seconds: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        resident, peak = (
            int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index] # every process
            for name in ("VmRSS", "VmHWM")
        )
        return cls(resident, peak, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


class ScaledFleet:
    """The installed chart, and deployments of `pods_each` hollow pods."""

    def __init__(self, cluster: DevCluster, api: KubernetesClient, *, pods_each: int) -> None:
        self.cluster = cluster
        self.pods_each = pods_each
        self._api = api

    async def create(self, count: int) -> None:
        """Make `count` deployments, spread over a few namespaces."""
        bodies = [self._body(number) for number in range(count)]

        async def post(body: dict[str, Any]) -> None:
            await self._api.post(_path(body["metadata"]), body)

        await _each(post, bodies)

    async def delete_all(self) -> None:
        """Ask for the end of every deployment."""

        async def delete(item: dict[str, Any]) -> None:
            await self._api.delete(_path(item["metadata"], item["metadata"]["name"]))

        await _each(delete, await self.deployments())

    async def deployments(self) -> list[dict[str, Any]]:
        return list((await self._api.get(_ALL))["items"])

    async def ready_count(self) -> int:
        """Deployments whose conditions show their present spec served by all replicas and routers."""
        return sum(_is_ready(item) for item in await self.deployments())

    async def left_count(self) -> int:
        """Objects that belong to a deployment, pods included."""
        paths = ("/api/v1/pods", "/api/v1/services", "/apis/apps/v1/deployments")
        answers = [await self._api.get(path, {"labelSelector": MODEL_DEPLOYMENT_LABEL}) for path in paths]
        return sum(len(answer["items"]) for answer in answers)

    async def until(self, count: Callable[[], Awaitable[int]], wanted: int, *, seconds: float) -> float:
        """Poll a count until it is `wanted`; returns the seconds that took.

        Raises:
            TimeoutError: it is not; the message has what it was.
        """
        started = time.monotonic()
        while (seen := await count()) != wanted:
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"after {seconds:g} s {seen} instead of {wanted}")
            await asyncio.sleep(0.5)
        return time.monotonic() - started

    async def operator_pod(self) -> dict[str, Any] | None:
        """The operator's pod, unless there are two."""
        pods = (await self._api.get(_OPERATOR, {"labelSelector": _OPERATOR_LABELS}))["items"]
        return pods[0] if len(pods) == 1 else None

    async def operator_pid(self) -> int:
        """Of the process that leads, as this machine numbers it; waits until there is one."""
        deadline = time.monotonic() + 60
        while True:
            pod = await self.operator_pod()
            if pod is not None and await self._leader() == pod["metadata"]["name"]:
                return _pid_in_pod("warmfleet_operator", f"--release-namespace={NAMESPACE}")
            if time.monotonic() > deadline:
                raise TimeoutError("no operator leads")
            await asyncio.sleep(0.2)

    async def restart_operator(self) -> None:
        """Delete the operator's pod; returns when it is gone, and another may have started."""
        pod = await self.operator_pod()
        assert pod is not None
        path = f"{_OPERATOR}/{pod['metadata']['name']}"
        await self._api.delete(path)
        while True:
            try:
                if (await self._api.get(path))["metadata"]["uid"] != pod["metadata"]["uid"]:
                    return
            except ApiServerError as error:
                if error.status == 404:
                    return
                raise
            await asyncio.sleep(0.1)

    async def looked_at_count(self) -> int:
        """Successful looks of the operator's process, up to the number of deployments; while nothing changes
        a new process looks at each of them once before it looks at any again."""
        looks = await self._metric("warmfleet_operator_reconciliations_total", result="done")
        return min(int(looks), len(await self.deployments()))

    async def _metric(self, name: str, **labels: str) -> float:
        """The sum of the operator's samples of that name with those labels."""
        pod = await self.operator_pod()
        assert pod is not None
        url = f"http://{pod['status']['podIP']}:8082/metrics"
        script = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=5).read().decode())"
        # -S -E: no site packages to look at, which is most of the start.
        argv = self.cluster.inside(sys.executable, "-S", "-E", "-c", script)
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        output = (await process.communicate())[0].decode()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in output.splitlines()
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)
        )

    def writes(self, since: float) -> list[AuditWrite]:
        """Of the operator, since a unix time, its Lease aside."""
        return [
            write
            for write in self.cluster.audit_writes(since)
            if write.user == _OPERATOR_USER and write.resource != "leases"
        ]

    async def _leader(self) -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/warmfleet-operator"
        try:
            return str((await self._api.get(path))["spec"].get("holderIdentity", ""))
        except ApiServerError as error:
            if error.status == 404:
                return ""
            raise

    def _body(self, number: int) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"namespace": f"models-{number % _MODEL_NAMESPACES}", "name": f"model-{number:03}"},
            "spec": {
                "model": {"source": {"image": {"reference": "registry.invalid/models/tiny:1"}}},
                "kvCache": {"size": "1Gi"},
                "replicas": self.pods_each,
                "nodeSelector": {HOLLOW_LABEL: "true"},
            },
        }


@asynccontextmanager
async def scaled_fleet(*, pods_each: int, hollow: int = 10) -> AsyncIterator[ScaledFleet]:
    """A cluster of its own with the chart installed and the operator leading; no deployment yet."""
    with running_cluster(nodes=1, hollow=hollow, pretend={}) as cluster, _hollow_routers(cluster):
        for number in range(_MODEL_NAMESPACES):
            cluster.kubectl("create", "namespace", f"models-{number}")
        values = ["-f", str(cluster.folder.images_values), "--set-json", json.dumps(_VALUES)]
        where = ["-n", NAMESPACE, "--create-namespace", "--wait"]
        cluster.helm("install", "warmfleet", str(CHART), *where, *values)
        async with KubernetesClient.connect(cluster.kubeconfig, user_agent="scaled-fleet") as api:
            fleet = ScaledFleet(cluster, api, pods_each=pods_each)
            await fleet.operator_pid()
            yield fleet


@contextmanager
def _hollow_routers(cluster: DevCluster) -> Iterator[None]:
    """One process that answers at the address of every hollow pod, routers' among them."""
    kubeconfig = cluster.settings.state / "pki" / "admin.kubeconfig"
    argv = cluster.inside(sys.executable, "-m", "warmfleet_testing.cluster.hollow_router", str(kubeconfig))
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert "listening" in process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def by_kind(writes: list[AuditWrite]) -> Mapping[str, int]:
    """How many writes of what: `patch modeldeployments/status` and the like, most frequent first."""
    names = (
        f"{write.verb} {write.resource}" + (f"/{write.subresource}" if write.subresource else "")
        for write in writes
    )
    return dict(Counter(names).most_common())


def _path(metadata: Mapping[str, Any], name: str = "") -> str:
    return f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{PLURAL}" + (f"/{name}" if name else "")


def _is_ready(deployment: Mapping[str, Any]) -> bool:
    generation = deployment["metadata"]["generation"]
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == generation
        for condition in (deployment.get("status") or {}).get("conditions") or ()
    )


async def _each(act: Callable[[Any], Any], items: list[Any]) -> None:
    """A few at once."""
    room = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def one(item: Any) -> None:
        async with room:
            await act(item)

    await asyncio.gather(*map(one, items))


def _pid_in_pod(*words: str) -> int:
    """The process that is number 1 of its namespace and has these words among its arguments."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            arguments = (folder / "cmdline").read_text().split("\0")
            numbers = re.search(r"NSpid:(.*)", (folder / "status").read_text())
        except OSError:  # it has ended since
            continue
        inner = numbers[1].split() if numbers else []
        if len(inner) > 1 and inner[-1] == "1" and all(word in arguments for word in words):
            return int(folder.name)
    raise LookupError(f"no pod runs {' '.join(words)}")
