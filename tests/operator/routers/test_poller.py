"""Which routers the operator asks."""

import asyncio
import json
from pathlib import Path
from typing import Any

from warmfleet_operator.errors import UnreachableError
from warmfleet_operator.routers.poller import RouterPoller
from warmfleet_operator.routers.totals import TotalsReader
from warmfleet_operator.scaling.signals import MAX_ROUTERS
from warmfleet_operator.settings import OperatorSettings

SCHEMA = Path(__file__).parents[3] / "charts" / "warmfleet" / "values.schema.json"


def router(uid: str, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"uid": uid}, "status": {"podIP": f"10.0.0.{uid}", "conditions": conditions}}


class Pods:
    """The API server's list of router pods, or the error instead of it."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods: tuple[dict[str, Any], ...] = pods
        self.fails = False

    async def selected(self, *_: object) -> tuple[dict[str, Any], ...]:
        if self.fails:
            raise UnreachableError("GET pods: connection refused")
        return self.pods


def test_every_router_of_a_chart_is_asked_and_one_beyond_counts_as_missing() -> None:
    router_values = json.loads(SCHEMA.read_text())["properties"]["router"]["properties"]
    autoscaling = router_values["autoscaling"]["properties"]
    most = max(router_values["replicas"]["maximum"], autoscaling["maxReplicas"]["maximum"])
    poller = RouterPoller(
        cluster=Pods(*[router(str(number)) for number in range(most + 1)]),  # type: ignore[arg-type] # a part
        client=None,  # type: ignore[arg-type] # no router is asked
        settings=OperatorSettings(release_namespace="warmfleet"),
        on_change=lambda *_: None,
    )
    reader = TotalsReader(routers=poller, client=None)  # type: ignore[arg-type]

    asyncio.run(poller.find())

    assert len(poller.addresses) == most == MAX_ROUTERS
    assert reader.routers == most + 1


def test_a_router_that_has_just_got_ready_is_found_between_polls_and_an_error_forgets_none() -> None:
    listed = Pods(router("1"), router("2", ready=False))
    poller = RouterPoller(
        cluster=listed,  # type: ignore[arg-type] # a part of it
        client=None,  # type: ignore[arg-type] # no router is asked
        settings=OperatorSettings(release_namespace="warmfleet"),
        on_change=lambda *_: None,
    )

    asyncio.run(poller.find())
    first = dict(poller.addresses)
    listed.pods = (router("1"), router("2"))
    asyncio.run(poller.find())
    listed.fails = True
    asyncio.run(poller.find())

    assert first == {"1": "10.0.0.1"}
    assert poller.addresses == {"1": "10.0.0.1", "2": "10.0.0.2"}
    assert not poller.view.polled
