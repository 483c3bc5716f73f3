"""Two operators of two releases over one ModelDeployment, in any order of writes and of late watch events."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.resources.conditions import RELEASE_CONFLICT
from warmfleet_operator.errors import ClusterError, KeysMissingError, RefusedError
from warmfleet_operator.hub.commits import HubCommits
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT, Kind, kind_of
from warmfleet_operator.objects.releases import release_of
from warmfleet_operator.reconcile.reconcile import Reconciler
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.replicas.shrinks import Shrinks
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.routers.hit_rates import HitRates
from warmfleet_operator.scaling.signals import Reading
from warmfleet_operator.settings import OperatorSettings, Release
from warmfleet_operator.status.advisor import ScalingAdvisor
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_testing.resources.observations import deployment
from warmfleet_testing.resources.stored_objects import StoredObjects

M = Key("models", "m")
CHILDREN = 6
ROUNDS = 12


class ApiServer:
    """Objects, and for each operator the changes that its watches have not reported yet."""

    def __init__(self, pauses: Iterator[int]) -> None:
        self._pauses = pauses
        self._objects = StoredObjects()
        self.watches: list[list[tuple[Kind, dict[str, Any]]]] = []
        self.writes = 0
        self._put(MODEL_DEPLOYMENT, deployment())

    def body(self) -> dict[str, Any]:
        return self._objects.get(MODEL_DEPLOYMENT, "m")

    def children(self) -> list[dict[str, Any]]:
        return [body for kind, body in self._objects.all() if kind is not MODEL_DEPLOYMENT]

    async def read(self, kind: Kind, _namespace: str, name: str) -> dict[str, Any]:
        await self._pause()
        return self._objects.get(kind, name)

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        await self._pause()
        return self._put(kind_of(manifest), dict(manifest))

    async def apply_status(
        self, _namespace: str, _name: str, _uid: str, status: Mapping[str, Any]
    ) -> dict[str, Any]:
        await self._pause()
        reports = [item for item in self._conditions() if item["type"] == RELEASE_CONFLICT]
        return self._with_status({**status, "conditions": [*status["conditions"], *reports]})

    async def apply_conflict(
        self, _namespace: str, _name: str, _uid: str, conditions: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        await self._pause()
        others = [item for item in self._conditions() if item["type"] != RELEASE_CONFLICT]
        status = self.body().get("status") or {}
        return self._with_status({**status, "conditions": [*others, *conditions]})

    async def record(self, _event: Mapping[str, Any]) -> None:
        await self._pause()

    def reports(self) -> list[str]:
        return [item["message"] for item in self._conditions() if item["type"] == RELEASE_CONFLICT]

    def _conditions(self) -> list[Mapping[str, Any]]:
        return list((self.body().get("status") or {}).get("conditions") or ())

    def _with_status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        return self._put(MODEL_DEPLOYMENT, {**self.body(), "status": dict(status)})

    def _put(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        stored = self._objects.put(kind, body)
        self.writes += 1
        for watch in self.watches:
            watch.append((kind, stored))
        return stored

    async def _pause(self) -> None:
        for _ in range(next(self._pauses)):
            await asyncio.sleep(0)


class Keys:
    """Of namespaces; `problem` is why there is none."""

    def __init__(self, problem: str = "") -> None:
        self._problem = problem

    async def ensure_namespace(self, _namespace: str) -> None:
        if self._problem:
            raise KeysMissingError(self._problem)


class NoRouters:
    view = FleetView(polled=True)


class NoTotals:
    routers = 0

    async def read(self) -> None:
        """There is no router."""

    def readings(self) -> tuple[Reading, ...]:
        return ()


class NoHandover:
    async def hand_over(self, *_: object, **__: object) -> None:
        """There is no router."""


class Operator:
    """The reconciliations of one operator, and its store."""

    def __init__(self, server: ApiServer, release: Release, *adopted: Release, keys: str = "") -> None:
        self.store = Store(lambda _: None)
        self._events: list[tuple[Kind, dict[str, Any]]] = []
        server.watches.append(self._events)
        self.store.put(entry_of(MODEL_DEPLOYMENT, server.body()))
        for child in server.children():
            self.store.put(entry_of(kind_of(child), child))
        made = OperatorSettings(
            release_namespace=release.namespace, release_name=release.name, adopted_releases=adopted
        )
        metrics = OperatorMetrics()
        writer = Writer(
            cluster=server,  # type: ignore[arg-type] # a part of it
            store=self.store,
            metrics=metrics,
            settings=made,
        )
        self._reconciler = Reconciler(
            store=self.store,
            writer=writer,
            key_secrets=Keys(keys),  # type: ignore[arg-type] # a part of it
            commits=HubCommits[Key](
                cluster=server,  # type: ignore[arg-type] # a part of it
                settings=made,
                on_change=lambda _: None,
            ),
            routers=NoRouters(),  # type: ignore[arg-type] # a part of it
            hits=HitRates(),
            advisor=ScalingAdvisor(
                store=self.store,
                totals=NoTotals(),
                no_room_seconds=made.no_room_seconds,
                on_change=lambda _: None,
            ),
            shrinks=Shrinks(
                totals=NoTotals(), handover=NoHandover(), on_handed_over=lambda _: None, metrics=metrics
            ),
            settings=made,
        )

    def watch(self, events: int | None = None) -> None:
        """Receive the oldest changes, or all."""
        number = len(self._events) if events is None else events
        for kind, body in self._events[:number]:
            self.store.put(entry_of(kind, body))
        del self._events[:number]

    async def reconcile_once(self) -> None:
        await self._reconciler.reconcile(M)

    async def reconcile(self) -> None:
        with suppress(ClusterError):  # it is tried again
            await self.reconcile_once()


async def settled(server: ApiServer, *operators: Operator) -> None:
    """Rounds of all operators until none writes any more."""
    for _ in range(ROUNDS):
        before = server.writes
        for operator in operators:
            operator.watch()
        await asyncio.gather(*(operator.reconcile() for operator in operators))
        if server.writes == before:
            return
    raise AssertionError(f"still writing after {ROUNDS} rounds")


def owner_of_all(server: ApiServer) -> str:
    """The release that all objects and the status name."""
    assert len(server.children()) == CHILDREN
    (release,) = {release_of(child) for child in server.children()}
    assert server.body()["status"]["release"] == str(release)
    return str(release)


BLUE, GREEN = Release("models", "blue"), Release("models", "green")
STEPS = st.lists(st.tuples(st.sampled_from(["blue", "green", "both"]), st.integers(0, 8)), max_size=8)
PAUSES = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(STEPS, PAUSES)
def test_one_release_owns_everything_and_the_other_reports_it_once(steps, pauses) -> None:
    async def run() -> None:
        server = ApiServer(itertools.cycle(pauses))
        blue, green = Operator(server, BLUE), Operator(server, GREEN)
        chosen = {"blue": (blue,), "green": (green,), "both": (blue, green)}
        for name, events in steps:
            for operator in chosen[name]:
                operator.watch(events)
            await asyncio.gather(*(operator.reconcile() for operator in chosen[name]))

        await settled(server, blue, green)

        owner = owner_of_all(server)
        (report,) = server.reports()
        assert f"Deployment m belongs to release {owner}" in report
        assert owner not in report.partition(":")[0]

    asyncio.run(run())


@settings(max_examples=20, deadline=None)
@given(PAUSES)
def test_a_release_hands_over_while_both_operators_run(pauses) -> None:
    async def run() -> None:
        server = ApiServer(itertools.cycle(pauses))
        blue = Operator(server, BLUE)
        await settled(server, blue)
        assert owner_of_all(server) == "models/blue"

        green = Operator(server, GREEN, BLUE)
        await settled(server, blue, green)

        assert owner_of_all(server) == "models/green"
        (report,) = server.reports()
        assert report.startswith("Release models/blue does not write it: Deployment m belongs to")

    asyncio.run(run())


async def test_what_cannot_be_adopted_stays_its_owners_with_its_status() -> None:
    server = ApiServer(itertools.cycle([1]))
    blue = Operator(server, BLUE)
    await settled(server, blue)

    green = Operator(server, GREEN, BLUE, keys="other root keys")
    await settled(server, blue, green)

    assert owner_of_all(server) == "models/blue"
    assert server.reports() == []
    with pytest.raises(RefusedError, match="not adopted yet: other root keys"):
        await green.reconcile_once()
