"""`python -m warmfleet_devcluster.hollow`: nodes on which nothing runs, for tests of scale.

A pod bound to one becomes Running and Ready at once (Succeeded, if its restart policy lets it end), with an
unreachable address; its deletion is confirmed at once.
"""

import argparse
import asyncio
import ipaddress
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_devcluster.clock import rfc3339
from warmfleet_devcluster.node.container.state import ContainerView, Running, Terminated
from warmfleet_devcluster.node.heartbeat import NodeHeartbeat
from warmfleet_devcluster.node.node_object import machine_capacity, node_status
from warmfleet_devcluster.node.pod.status import FINAL_PHASES, PodFacts, pod_status
from warmfleet_devcluster.settings import WATCH_TIMING
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import Informer, ObjectChange, Watched
from warmfleet_runtime.kubernetes.media_types import STRATEGIC_MERGE_PATCH

Json = dict[str, Any]

HOLLOW_LABEL: Final = "devcluster.warmfleet.dev/hollow"
POD_NETWORK: Final = ipaddress.ip_network("198.18.0.0/15")
"""Set aside for tests of scale (RFC 2544): no route leads there."""
_MAX_NODES: Final = 1000
_MAX_PODS_PER_NODE: Final = 1000
_WRITES_AT_ONCE: Final = 32
_RETRY_SECONDS: Final = 1.0
_LEASE_SECONDS: Final = 5.0
_CAPACITY: Final = {"cpu": "1000", "memory": "4Ti", "nvidia.com/gpu": "1000"}
log = structlog.get_logger()


class HollowNodes:
    """All hollow nodes of a cluster, behind one watch."""

    def __init__(self, api: KubernetesClient, names: list[str]) -> None:
        self._api = api
        self._names = names
        self._addresses = _addresses()
        self._writes = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._settled: dict[str, str] = {}
        """Pod uid -> what was written last: `ready` or `gone`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._since = rfc3339()

    async def run(self) -> None:
        """Until cancelled."""
        capacity = {**machine_capacity(_MAX_PODS_PER_NODE), **_CAPACITY}
        beats = []
        for name in self._names:
            beat = NodeHeartbeat(
                self._api,
                name,
                lambda name=name: node_status(  # type: ignore[misc] # mypy does not infer the default's type
                    name, address="", kubelet_port=0, capacity=capacity, since=self._since, now=rfc3339()
                ),
                labels={HOLLOW_LABEL: "true"},
                pod_cidr="",
                lease_seconds=_LEASE_SECONDS,
            )
            await beat.register()
            beats.append(asyncio.create_task(beat.renew()))
        log.info("hollow nodes registered", count=len(beats))
        try:
            await self._follow_pods()
        finally:
            for task in (*beats, *self._tasks):
                task.cancel()
            await asyncio.gather(*beats, *self._tasks, return_exceptions=True)

    async def _follow_pods(self) -> None:
        names = set(self._names)

        def follow(change: ObjectChange[Json]) -> None:
            pod = change.object
            if change.is_deleted:
                self._settled.pop(pod["metadata"]["uid"], None)
            elif pod["spec"].get("nodeName") in names:
                self._settle(pod)

        pods = Informer(
            self._api,
            Watched("v1", "pods", Json),
            timing=WATCH_TIMING,
            max_objects=_MAX_NODES * _MAX_PODS_PER_NODE,
            on_object=follow,
        )
        await pods.run()

    def _settle(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        wanted = "gone" if "deletionTimestamp" in pod["metadata"] else "ready"
        if self._settled.get(uid) in (wanted, "gone"):
            return
        self._settled[uid] = wanted
        task = asyncio.create_task(self._delete(pod) if wanted == "gone" else self._start(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: Json) -> None:
        if pod.get("status", {}).get("phase") in FINAL_PHASES:
            return
        status = hollow_status(pod, next(self._addresses), rfc3339())
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._until_done("PATCH", f"{_path(pod)}/status", body)

    async def _delete(self, pod: Json) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        await self._until_done("DELETE", _path(pod), options)

    async def _until_done(self, method: str, path: str, body: Json) -> None:
        while True:
            try:
                async with self._writes:
                    if method == "PATCH":
                        await self._api.patch(path, body, STRATEGIC_MERGE_PATCH)
                    else:
                        await self._api.delete(path, body)
            except ApiServerError as error:
                if error.status in (404, 409):
                    return
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


def hollow_status(pod: Json, address: str, now: str) -> Json:
    """The status of a pod on a hollow node: that of a real node, although nothing runs. Pure."""
    spec = pod["spec"]
    ends = spec.get("restartPolicy", "Always") != "Always"
    over = Terminated(0, "Completed", now, now, "hollow://")

    def view(container: Json, *, over_now: bool) -> ContainerView:
        return ContainerView(
            name=container["name"],
            image=container.get("image", ""),
            state=over if over_now else Running(now),
            ready=not over_now,
            started=not over_now,
            container_id="hollow://",
            restarts_always=container.get("restartPolicy") == "Always",
        )

    return pod_status(
        PodFacts(
            restart_policy=spec.get("restartPolicy", "Always"),
            gates_open=True,
            generation=pod["metadata"].get("generation", 0),
            host_ip="198.18.0.1",
            pod_ip=address,
            start_time=now,
        ),
        [
            view(container, over_now=container.get("restartPolicy") != "Always")
            for container in spec.get("initContainers", [])
        ],
        [view(container, over_now=ends) for container in spec["containers"]],
        previous=pod.get("status", {}),
        now=now,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m warmfleet_devcluster.hollow", allow_abbrev=False)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of an administrator")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--prefix", default="hollow")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if not 1 <= given.count <= _MAX_NODES:
        parser.error(f"--count is 1 to {_MAX_NODES}, not {given.count}")
    asyncio.run(_run(given.kubeconfig, [f"{given.prefix}-{index}" for index in range(given.count)]))
    return 0


async def _run(kubeconfig: Path, names: list[str]) -> None:
    async with KubernetesClient.connect(kubeconfig, user_agent="warmfleet-hollow-nodes") as api:
        running = asyncio.create_task(HollowNodes(api, names).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        await asyncio.gather(running, return_exceptions=True)


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _addresses() -> Iterator[str]:
    """More than any test has pods at a time; the first two are left out."""
    return itertools.cycle(str(POD_NETWORK[index]) for index in range(2, 2 + (1 << 16)))


if __name__ == "__main__":
    sys.exit(main())
