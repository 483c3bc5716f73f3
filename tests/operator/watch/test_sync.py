"""The comparison of the store with lists, where the API server refuses to list one of several namespaces."""

# ruff: noqa: ASYNC110 - what is waited for happens in another task

import asyncio
from typing import Any

from warmfleet_operator.cluster import Listed
from warmfleet_operator.errors import RefusedError
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT, Kind
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_operator.watch.sync import Sync

PERIOD_SECONDS = 0.02


class Lists:
    """Lists of ModelDeployments, one to a namespace, of which some are refused."""

    def __init__(self, *namespaces: str) -> None:
        self.namespaces = namespaces
        self.refused: set[str] = set()
        self.asked = 0
        self.version = 1

    async def names(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Listed]:
        del selector
        self.asked += 1
        if namespace in self.refused:
            raise RefusedError(f"cannot list {kind.plural} in {namespace}")
        return (
            [Listed(str(namespace), "m", f"uid-{namespace}", self.version)]
            if kind is MODEL_DEPLOYMENT
            else []
        )


def deployment(namespace: str, version: int = 1) -> Any:
    metadata = {
        "namespace": namespace,
        "name": "m",
        "uid": f"uid-{namespace}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 1,
    }
    return entry_of(MODEL_DEPLOYMENT, {"metadata": metadata, "spec": {}})


def compared(lists: Lists, store: Store) -> Sync:
    loop = asyncio.get_running_loop()
    return Sync(
        cluster=lists,  # type: ignore[arg-type]
        store=store,
        namespaces=lists.namespaces,
        clock=loop.time,
        period_seconds=PERIOD_SECONDS,
    )


async def until(holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(PERIOD_SECONDS)


async def test_an_operator_starts_and_syncs_without_a_namespace_that_refuses_its_lists() -> None:
    lists, store = Lists("left", "kept"), Store([].append)
    lists.refused = {"left"}
    store.put(deployment("kept"))
    sync = compared(lists, store)

    await asyncio.wait_for(sync.until_served(), 5)
    running = asyncio.create_task(sync.run())
    await asyncio.wait_for(sync.synced.wait(), 5)

    assert sync.refused == {"left"}
    assert sync.dead_watches() == []
    running.cancel()


async def test_an_operator_waits_while_every_namespace_refuses() -> None:
    lists, store = Lists("a", "b"), Store([].append)
    lists.refused = {"a", "b"}
    sync = compared(lists, store)
    served = asyncio.create_task(sync.until_served())

    await until(lambda: lists.asked >= 2)
    await asyncio.sleep(5 * PERIOD_SECONDS)

    assert not served.done()
    served.cancel()


async def test_a_refused_namespace_keeps_its_objects_and_counts_again_once_they_are_current() -> None:
    lists, store = Lists("left", "kept"), Store([].append)
    for namespace in ("left", "kept"):
        store.put(deployment(namespace))
    sync = compared(lists, store)
    running = asyncio.create_task(sync.run())
    await asyncio.wait_for(sync.synced.wait(), 5)
    assert sync.refused == set()

    lists.refused = {"left"}
    await until(lambda: sync.refused == {"left"})
    assert store.deployment(Key("left", "m")) is not None

    lists.refused, lists.version = set(), 2
    store.put(deployment("kept", version=2))
    asked = lists.asked
    await until(lambda: lists.asked > asked + 40)
    assert sync.refused == {"left"}, "the store does not hold what is listed yet"
    store.put(deployment("left", version=2))
    await until(lambda: not sync.refused)
    running.cancel()
