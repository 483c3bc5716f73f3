"""`python -m warmfleet_testing.cluster.hollow_router KUBECONFIG`: what routers report of hollow workers.

Runs in the cluster's network. No worker runs in a hollow pod, so a real router would find none ready. This
one answers `/internal/fleet` at the address of every hollow pod, in a real router's format and at a real
answer's size, and reports of every ready address in an EndpointSlice that requests are sent to it.
"""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from pyroute2 import IPRoute

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL, ROUTER_PORT
from warmfleet_devcluster.hollow import POD_NETWORK
from warmfleet_runtime.http.listener import listen
from warmfleet_runtime.kubernetes.client import KubernetesClient

_LOCAL_TABLE: Final = 255
_SLICES: Final = "/apis/discovery.k8s.io/v1/endpointslices"
_LOAD: Final = {
    "running_sequences": 3,
    "waiting_sequences": 0,
    "queued_uncached_tokens": 0,
    "total_blocks": 4096,
    "pinned_blocks": 512,
    "cached_blocks": 2048,
    "max_running_sequences": 8,
    "draining": False,
    "step_fit": {"base_ms": 4.1, "prefill_ms": 0.2, "decode_ms": 0.4, "context_ms": 0.0001},
}


def endpoint(uid: str, deployment: str, address: str) -> dict[str, Any]:
    """A ready worker without requests, as a router describes it."""
    return {
        "uid": uid,
        "deployment": deployment,
        "policy": "LowestCost",
        "url": f"http://{address}:8000",
        "ready": True,
        "unready_reason": "",
        "breaker": {"state": "closed", "failures": 0, "ejections": 0, "reason": ""},
        "precise": True,
        "served_names": [deployment.rpartition("/")[2], deployment],
        "epoch": 1,
        "identity": "0" * 32,
        "model_digest": "sha256:" + "0" * 64,
        "tokenizer_known": True,
        "block_size_tokens": 16,
        "max_model_length_tokens": 8192,
        "resident_blocks": 2560,
        "report_age_seconds": 0.5,
        "open_dispatches": 0,
        "unreported_tokens": 0,
        "unreported_seats": 0,
        "load": _LOAD,
    }


def answer_for_hollow_pods() -> socket.socket:
    """A listening socket, and every hollow pod's address led to it."""
    with IPRoute() as netlink:
        (loopback,) = netlink.link_lookup(ifname="lo")
        netlink.route(
            "add", dst=str(POD_NETWORK), oif=loopback, table=_LOCAL_TABLE, type="local", scope="host"
        )
    listener = listen("0.0.0.0", ROUTER_PORT, "hollow-router")  # at all of them
    assert listener is not None
    return listener


async def serve(kubeconfig: Path, listener: socket.socket) -> None:
    """Answer until cancelled."""
    async with KubernetesClient.connect(kubeconfig, user_agent="hollow-router") as api:

        async def fleet(_: web.Request) -> web.Response:
            # Any version that the API server has at hand will do: routers are behind a little, too.
            query = {"labelSelector": MODEL_DEPLOYMENT_LABEL, "resourceVersion": "0"}
            slices = (await api.get(_SLICES, query))["items"]
            endpoints = [
                endpoint(
                    ready["targetRef"]["uid"],
                    f"{item['metadata']['namespace']}/{item['metadata']['labels'][MODEL_DEPLOYMENT_LABEL]}",
                    ready["addresses"][0],
                )
                for item in slices
                for ready in item.get("endpoints") or ()
                if ready["conditions"].get("ready")
            ]
            return web.json_response({"router_id": "hollow", "held": {}, "endpoints": endpoints})

        app = web.Application()
        app.router.add_get("/internal/fleet", fleet)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


async def _run(kubeconfig: Path, listener: socket.socket) -> None:
    serving = asyncio.create_task(serve(kubeconfig, listener))
    # Its input ends when its starter ends, even by SIGKILL.
    asyncio.get_running_loop().add_reader(sys.stdin, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), answer_for_hollow_pods()))
