"""A router process that finds stub workers in a modelled API server, without a control plane."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from warmfleet_contracts.cache.worker_tokens import namespace_key, worker_token
from warmfleet_contracts.names import HTTP_PORT_NAME, MODEL_DEPLOYMENT_LABEL, PLURAL
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_testing.cluster.versioned_api import VersionedApi
from warmfleet_testing.processes.served_thread import served_thread
from warmfleet_testing.router.router_process import RouterProcess, started_router
from warmfleet_testing.router.stub_worker import StubWorker

ROOT: Final = bytes(range(32))
NAMESPACE: Final = "n"
"""That of the modelled objects."""
CHANGE_SECONDS: Final = 30
"""A change is made within this time, on a busy machine, too."""


def pod_token(uid: str) -> str:
    """What the worker of a pod has to prove."""
    return worker_token(namespace_key(ROOT, NAMESPACE), uid).decode()


class ModelledCluster:
    """ModelDeployments and the slices of their Services, over HTTP. Changes may come from any thread."""

    def __init__(self) -> None:
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._api = VersionedApi(self._wait)

    def deploy(self, name: str, **spec: Any) -> None:
        """Create or change a ModelDeployment."""
        self._put(PLURAL, name, {"spec": spec})

    def slice(self, of: str, *stubs: StubWorker) -> None:
        """From now on these are the pods of a deployment, one slice for each."""
        for number in range(4):
            pods = stubs[number : number + 1]
            content = {
                "metadata": {"labels": {MODEL_DEPLOYMENT_LABEL: of}},
                "addressType": "IPv4",
                "ports": [{"name": HTTP_PORT_NAME, "port": pod.port} for pod in pods],
                "endpoints": [
                    {
                        "addresses": ["127.0.0.1"],
                        "targetRef": {"kind": "Pod", "name": pod.uid, "uid": pod.uid},
                    }
                    for pod in pods
                ],
            }
            self._put("endpointslices", f"{of}-{number}", content)

    def _put(self, plural: str, name: str, content: dict[str, Any]) -> None:
        """Where watches are answered, so that each sees a change whole or not yet."""

        async def put() -> None:
            self._api.put(plural, name, content)

        assert self._loop is not None, "it is not served"
        asyncio.run_coroutine_threadsafe(put(), self._loop).result(CHANGE_SECONDS)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A list, or a watch."""
        try:
            if "watch" not in request.query:
                body = await self._api.read(request.path, request.query)
                return web.Response(body=body, content_type="application/json")
            response = web.StreamResponse()
            await response.prepare(request)
            async for line in self._api.lines(request.path, request.query, 60):
                await response.write(line + b"\n")
        except ApiServerError as error:
            return web.json_response({"message": str(error)}, status=error.status or 500)
        return response

    async def _wait(self) -> bool:
        await asyncio.sleep(0.01)
        return True

    async def serve(self, ready: threading.Event, stop: threading.Event) -> None:
        """On a free port, until `stop`."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._loop = asyncio.get_running_loop()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        """How a router reaches it."""
        named = {"name": "modelled"}
        config = {
            "current-context": "modelled",
            "contexts": [{**named, "context": {"cluster": "modelled", "user": "modelled"}}],
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "users": [{**named, "user": {"token": "any"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path


@contextmanager
def modelled_cluster() -> Iterator[ModelledCluster]:
    """An empty one."""
    cluster = ModelledCluster()
    with served_thread(cluster.serve, "modelled API server"):
        yield cluster


@contextmanager
def cluster_router(
    cluster: ModelledCluster, home: Path, flags: Sequence[str] = ()
) -> Iterator[RouterProcess]:
    """A router on a free port that serves the cluster's models, ready; killed at the end."""
    home.mkdir(parents=True, exist_ok=True)
    found = [
        "--discovery",
        "kubernetes",
        "--namespace",
        NAMESPACE,
        "--kubeconfig",
        str(cluster.kubeconfig(home)),
    ]
    command = [sys.executable, "-m", "warmfleet_router", "--port", "0", *found, *flags]
    variables = {"WARMFLEET_HOME": str(home), "WARMFLEET_WORKER_TOKEN_ROOT": ROOT.hex()}
    with started_router(command, variables) as router:
        yield router
