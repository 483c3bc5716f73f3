"""A node's heartbeats, against an API that is slow for once."""

import asyncio
from typing import Any

from warmfleet_devcluster.node.heartbeat import NodeHeartbeat


class SlowApi:
    """Writes down what is asked for; the second renewal of the Lease takes much longer than a beat."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.enough = asyncio.Event()

    async def patch(self, path: str, _body: dict[str, Any], _content_type: str) -> dict[str, Any]:
        kind = "lease" if "/leases/" in path else "status"
        self.asked.append(kind)
        if self.asked.count("lease") == 2 and kind == "lease":
            await asyncio.sleep(0.5)
        if len(self.asked) >= 4:
            self.enough.set()
        return {}


async def test_a_node_writes_its_status_at_once_after_a_beat_that_took_long() -> None:
    api = SlowApi()
    heartbeat = NodeHeartbeat(api, "node-0", dict, labels={}, pod_cidr="", lease_seconds=0.1)
    beating = asyncio.create_task(heartbeat.renew())
    await asyncio.wait_for(api.enough.wait(), 10)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)

    # The controllers may have called the node Unknown in the pause, and only its status ends that.
    assert api.asked == ["lease", "status", "lease", "status"]
