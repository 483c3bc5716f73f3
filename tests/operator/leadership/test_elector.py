"""The loop around the Lease: no answer of an API server ends it."""

import asyncio
from typing import Any

import pytest

from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import UnreachableError
from warmfleet_operator.leadership.elector import LeaderElector
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.settings import LeaseSettings


class DamagedLease(Cluster):
    """A cluster whose first reads of the Lease make no sense; after them it is free."""

    def __init__(self, failures: list[Any]) -> None:
        self.failures = failures
        self.created: list[object] = []

    async def read(self, *_: object) -> dict[str, Any]:
        free = {"metadata": {"resourceVersion": "1"}, "spec": {}}
        failure = self.failures.pop(0) if self.failures else free
        if isinstance(failure, Exception):
            raise failure
        return failure

    async def replace_lease(self, body: Any) -> dict[str, Any]:
        self.created.append(body)
        return {**body, "metadata": {"resourceVersion": "2"}}


@pytest.mark.parametrize(
    "failure",
    [
        UnreachableError("503"),
        {},
        {"metadata": {}},
        UnicodeDecodeError("utf-8", b"x", 0, 1, "as a proxy sends"),
    ],
    ids=["unreachable", "no metadata", "no version", "no text"],
)
async def test_an_answer_that_makes_no_sense_does_not_end_the_elections(failure: Any) -> None:
    cluster = DamagedLease([failure])
    leads = asyncio.Event()
    elector = LeaderElector(
        cluster=cluster,
        fence=Fence(),
        settings=LeaseSettings(retry_seconds=0.01),
        namespace="n",
        identity="a",
        on_change=lambda _: leads.set(),
    )
    running = asyncio.create_task(elector.run())

    async with asyncio.timeout(10):
        await leads.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert cluster.created
