"""An informer against a modelled API server: after any fault it ends with what the server holds."""

import asyncio
import contextlib
import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.names import API_VERSION
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import (
    GONE,
    MAX_OBJECTS,
    Informer,
    ObjectChange,
    Watched,
    WatchTiming,
)
from warmfleet_testing.cluster.versioned_api import VersionedApi

PLURAL = "modeldeployments"
AT_ONCE = WatchTiming(first_backoff_seconds=0.0, longest_backoff_seconds=0.0)


class Metadata(msgspec.Struct, frozen=True):
    name: str


class Source(msgspec.Struct, frozen=True, rename="camel"):
    served_names: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True):
    model: Source = Source()


class Model(msgspec.Struct, frozen=True):
    """The fields of an object that a reader wants."""

    metadata: Metadata
    spec: Spec = Spec()

    @property
    def served_names(self):
        return self.spec.model.served_names or (self.metadata.name,)


class Pause:
    """Ends the wait of a watch after each change."""

    def __init__(self):
        self.changed = asyncio.Event()

    async def __call__(self):
        await self.changed.wait()
        self.changed.clear()
        return True


def informer_of(api, *, of=Model, **arguments):
    watched = Watched(API_VERSION, PLURAL, of, "n", label_selector="a=b")
    return Informer(api, watched, **{"timing": AT_ONCE, **arguments})


async def run_until(informer, found):
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(5):
            while not found():
                assert not task.done(), task.result()
                await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(informer):
    return {found.metadata.name: found.served_names for found in informer.objects.values()}


async def test_pages_of_a_list_are_joined_and_the_watch_begins_where_it_ended():
    api = VersionedApi(Pause())
    for number in range(5):
        api.put(PLURAL, f"m{number}")
    informer = informer_of(api)

    assert (informer.synced.is_set(), informer.problem) == (False, "not listed yet")
    await run_until(informer, lambda: api.watched_from)

    assert set(names(informer)) == {f"m{number}" for number in range(5)}
    assert (api.lists, api.watched_from, informer.problem, informer.errors) == (1, [15], "", 0)


async def test_a_watch_that_broke_goes_on_where_it_was_without_a_new_list():
    api, broken = VersionedApi(Pause()), iter([None, None, ApiServerError("cannot be reached")])
    api.put(PLURAL, "m0")
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)
    api.interrupt = lambda: next(broken, None)
    api.put(PLURAL, "m1", {"spec": {"model": {"servedNames": ["x"]}}})
    api.delete(PLURAL, "m0")
    api.put("other", "m2")
    await run_until(informer, lambda: names(informer) == {"m1": ("x",)} and informer.problem == "")

    assert api.lists == 1
    assert informer.errors == 1
    assert api.watched_from == [11, 11, 12]  # from what was seen last, and not from the list


async def test_bookmarks_keep_the_version_young():
    api = VersionedApi(Pause())
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)
    api.put("other", "x")
    await run_until(informer, lambda: len(api.watched_from) == 2 and informer.current_at)
    await asyncio.sleep(0)
    await run_until(informer, lambda: len(api.watched_from) == 3)

    assert api.watched_from == [10, 10, 11]


async def test_the_model_loses_no_change_that_is_made_while_a_bookmark_is_on_its_way():
    async def goes_on():
        return True

    api = VersionedApi(goes_on)
    async with contextlib.aclosing(api.lines(f"/{PLURAL}", {"resourceVersion": "10"}, 60)) as lines:
        assert await anext(lines) == b""
        assert json.loads(await anext(lines))["type"] == "BOOKMARK"
        api.put(PLURAL, "a")
        assert json.loads(await anext(lines))["type"] == "ADDED"


@pytest.mark.parametrize("how", ["status", "event", "unreadable"])
async def test_a_version_that_is_too_old_means_a_new_list_and_until_then_the_old_one_stays(how):
    api = VersionedApi(Pause())
    api.put(PLURAL, "m0")
    api.put(PLURAL, "m1")
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)
    api.delete(PLURAL, "m0")
    seen_meanwhile = []

    class Interrupted(VersionedApi):
        async def read(self, path, query, *, accept=""):
            seen_meanwhile.append(names(informer))
            return await super().read(path, query, accept=accept)

        async def lines(self, path, query, silence_seconds):
            if self.lists == 1 and how != "status":
                yield b""
                status = {"kind": "Status", "code": GONE, "message": "too old resource version"}
                event = {"type": "ERROR", "object": status}
                yield json.dumps(event).encode() if how == "event" else b'{"type": "ADDED", "object": {"meta'
            async for line in super().lines(path, query, silence_seconds):
                yield line

    again = Interrupted(Pause(), objects=api.objects, log=api.log, version=api.version, lists=1)
    again.compact()
    informer._client = again
    await run_until(informer, lambda: set(names(informer)) == {"m1"} and again.watched_from)

    assert again.lists == 2
    assert seen_meanwhile == [{"m0": ("m0",), "m1": ("m1",)}]
    assert informer.errors == 1


async def test_an_object_that_cannot_be_read_leaves_its_last_state_and_the_others_alone():
    api = VersionedApi(Pause())
    api.put(PLURAL, "m0", {"spec": {"model": {"servedNames": ["x"]}}})
    api.put(PLURAL, "odd", {"spec": {"model": {"servedNames": 7}}})
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)
    assert names(informer) == {"m0": ("x",)}

    api.put(PLURAL, "m0", {"spec": "of another version"})
    api.put(PLURAL, "m1")
    await run_until(informer, lambda: "m1" in names(informer))

    assert names(informer) == {"m0": ("x",), "m1": ("m1",)}
    assert (api.lists, informer.errors) == (1, 0)


async def test_there_is_a_limit_to_what_is_kept():
    api = VersionedApi(Pause(), page_objects=MAX_OBJECTS)
    for number in range(MAX_OBJECTS + 3):
        api.put(PLURAL, f"m{number}")
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)

    assert len(informer.objects) == MAX_OBJECTS


async def test_a_refusal_is_reported_once_and_asked_again_no_sooner_than_the_server_wants():
    began, asked = time.monotonic(), []

    def refuse():
        asked.append(time.monotonic())
        return ApiServerError("answers 429", message="Too many", status=429, retry_after_seconds=0.05)

    changes = []
    informer = informer_of(VersionedApi(Pause(), interrupt=refuse), on_change=lambda: changes.append(1))
    await run_until(informer, lambda: len(asked) == 3)

    assert asked[-1] - began >= 0.1
    assert informer.problem == "modeldeployments in namespace n: answers 429"
    assert len(changes) == 1
    assert (informer.errors, informer.synced.is_set()) == (3, False)


async def test_a_server_whose_watches_end_at_once_is_not_asked_without_a_pause():
    async def ends():
        return False

    api = VersionedApi(ends)
    informer = informer_of(api, timing=WatchTiming(first_backoff_seconds=0.02, longest_backoff_seconds=0.02))
    began = time.monotonic()
    await run_until(informer, lambda: len(api.watched_from) == 6)

    assert time.monotonic() - began >= 5 * 0.01
    assert (informer.problem, api.lists) == ("", 1)


async def test_each_object_that_changes_is_reported_with_its_last_state_also_by_a_new_list():
    api, changes = VersionedApi(Pause()), []
    api.put(PLURAL, "m0")
    api.put(PLURAL, "m1")
    informer = informer_of(api, on_object=changes.append)
    await run_until(informer, lambda: api.watched_from)
    api.put(PLURAL, "m1", {"spec": {"model": {"servedNames": ["x"]}}})
    api.put(PLURAL, "m2")
    api.delete(PLURAL, "m0")
    await run_until(informer, lambda: "m0" not in names(informer))
    watched, changes[:] = changes[:], []
    api.put(PLURAL, "m2", {"spec": {"model": {"servedNames": ["y"]}}})
    api.delete(PLURAL, "m1")
    api.compact()
    await run_until(informer, lambda: "m1" not in names(informer))

    def model(name, *served):
        return Model(Metadata(name), Spec(Source(served)))

    assert watched == [
        ObjectChange(model("m0")),
        ObjectChange(model("m1")),
        ObjectChange(model("m1", "x")),
        ObjectChange(model("m2")),
        ObjectChange(model("m0"), is_deleted=True),
    ]
    assert changes == [ObjectChange(model("m1", "x"), is_deleted=True), ObjectChange(model("m2", "y"))]
    assert api.lists == 2


async def test_an_object_that_is_made_again_under_its_name_is_another_one():
    api, changes = VersionedApi(Pause()), []
    api.put(PLURAL, "m0", {"metadata": {"uid": "first"}})
    informer = informer_of(api, of=dict, on_object=changes.append)
    await run_until(informer, lambda: api.watched_from)
    api.delete(PLURAL, "m0")
    api.put(PLURAL, "m0", {"metadata": {"uid": "second"}})
    api.compact()
    await run_until(informer, lambda: "second" in informer.objects)

    assert [(change.object["metadata"]["uid"], change.is_deleted) for change in changes] == [
        ("first", False),
        ("first", True),
        ("second", False),
    ]
    assert informer.objects.keys() == {"second"}


async def test_a_deleted_object_goes_also_if_its_last_state_cannot_be_read():
    api = VersionedApi(Pause())
    api.put(PLURAL, "m0")
    informer = informer_of(api)
    await run_until(informer, lambda: api.watched_from)
    api.put(PLURAL, "m0", {"spec": "of another version"})
    api.delete(PLURAL, "m0")
    await run_until(informer, lambda: not informer.objects)

    assert (api.lists, informer.errors) == (1, 0)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "compact", "refused", "gone", "cut", "quiet"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(CHANGES)
def test_after_any_faults_in_any_order_the_informer_ends_with_what_the_server_has(changes):
    async def play():
        pause, faults = Pause(), []
        api = VersionedApi(pause, interrupt=lambda: faults.pop() if faults else None)
        informer = informer_of(api)
        task = asyncio.create_task(informer.run())
        try:
            for what, name, number in changes:
                if what == "put":
                    api.put(PLURAL, name, {"spec": {"model": {"servedNames": [f"x{number}"]}}})
                elif what == "delete":
                    api.delete(PLURAL, name)
                elif what == "compact":
                    api.compact()
                elif what == "gone":
                    faults.append(ApiServerError("too old", status=GONE))
                elif what in {"refused", "cut"}:
                    faults.append(ApiServerError(what, status=500 if what == "refused" else None))
                pause.changed.set()
                for _ in range(number):
                    await asyncio.sleep(0)
            faults.clear()
            wanted = {
                path.removeprefix(f"{PLURAL}/"): one["spec"]["model"]["servedNames"]
                for path, one in api.objects.items()
            }
            async with asyncio.timeout(5):
                while {
                    name: list(found) for name, found in names(informer).items()
                } != wanted or informer.problem:
                    pause.changed.set()
                    await asyncio.sleep(0)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
