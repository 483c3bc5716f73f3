"""What `KopfWatches` relies on in kopf, each by a test that fails when kopf changes it (decision 0012)."""

import asyncio
import getpass
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import kopf
import pytest

from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, WATCHED, Kind
from warmfleet_operator.watch import kopf_watches
from warmfleet_operator.watch.entry import Entry, Key
from warmfleet_operator.watch.kopf_watches import KopfWatches
from warmfleet_testing.resources.observations import deployment, workers
from warmfleet_testing.resources.stub_api_server import StubApiServer, running_stub_api_server

LIMIT_SECONDS = 10.0


class Reported:
    """What `KopfWatches` has reported."""

    def __init__(self) -> None:
        self.updates: list[Entry] = []
        self.deletions: list[tuple[Kind, Key, str]] = []
        self.threads: set[int] = set()

    def update(self, entry: Entry) -> None:
        self.threads.add(threading.get_ident())
        self.updates.append(entry)

    def delete(self, kind: Kind, key: Key, uid: str) -> None:
        self.deletions.append((kind, key, uid))


@asynccontextmanager
async def watching(stub: StubApiServer, *namespaces: str) -> AsyncIterator[tuple[KopfWatches, Reported]]:
    reported = Reported()

    async def connect():
        return stub.connection()

    watches = KopfWatches(
        namespaces=namespaces, connect=connect, on_update=reported.update, on_delete=reported.delete
    )
    watches.start()
    try:
        yield watches, reported
    finally:
        await watches.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - two threads and a server take part
            await asyncio.sleep(0.01)


def every_kind_is_watched(stub: StubApiServer) -> bool:
    return all(stub.watches(kind) for kind in WATCHED)


async def test_kopf_reports_what_is_listed_changed_and_deleted_in_the_loop_of_the_operator() -> None:
    async with running_stub_api_server() as stub:
        stub.objects[MODEL_DEPLOYMENT] = [deployment()]
        async with watching(stub) as (_, reported):
            await until(lambda: reported.updates)
            await until(lambda: every_kind_is_watched(stub))
            await stub.send(DEPLOYMENT, "MODIFIED", workers())
            await until(lambda: len(reported.updates) == 2)
            await stub.send(DEPLOYMENT, "DELETED", workers())
            await until(lambda: reported.deletions)

    assert [entry.kind for entry in reported.updates] == [MODEL_DEPLOYMENT, DEPLOYMENT]
    assert reported.deletions == [(DEPLOYMENT, Key("models", "m"), "uid-workers")]
    assert reported.threads == {threading.get_ident()}


async def test_kopf_only_reads_and_needs_no_right_on_namespaces_or_definitions() -> None:
    """No finalizer, no annotation, no event: each of them would be a PATCH or a POST."""
    async with running_stub_api_server() as stub:
        stub.objects[MODEL_DEPLOYMENT] = [deployment()]
        async with watching(stub) as (_, reported):
            await until(lambda: every_kind_is_watched(stub))
            changed = deployment(replicas=5)
            changed["metadata"] |= {"resourceVersion": "11", "deletionTimestamp": "2026-01-01T00:00:00Z"}
            await stub.send(MODEL_DEPLOYMENT, "MODIFIED", changed)
            await until(lambda: len(reported.updates) == 2)
            await asyncio.sleep(2 * kopf_watches._IDLE_SECONDS)

    assert {request.method for request in stub.requests} == {"GET"}
    paths = {request.path for request in stub.requests}
    assert "/api/v1/namespaces" not in paths
    assert not any("customresourcedefinitions" in path for path in paths)


async def test_kopf_selects_children_by_their_label_and_lists_in_pages() -> None:
    async with running_stub_api_server() as stub, watching(stub):
        await until(lambda: every_kind_is_watched(stub))

    for kind in WATCHED:
        selector = None if kind is MODEL_DEPLOYMENT else "warmfleet.dev/model-deployment"
        asked = [request for request in stub.requests if request.path == kind.path(None)]
        assert {request.query.get("labelSelector") for request in asked} == {selector}, kind
        assert asked[0].query["limit"] == str(kopf_watches._PAGE_SIZE)


async def test_kopf_retries_for_as_long_as_backoffs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It iterates over an object that has no length and no end."""
    monkeypatch.setattr(kopf_watches, "_BACKOFFS_SECONDS", (0.01,))
    async with running_stub_api_server() as stub:
        stub.failures = 100
        async with watching(stub):
            await until(lambda: every_kind_is_watched(stub))

    assert stub.failures == 0


async def test_a_watch_that_kopf_gives_up_is_restarted_with_all_others() -> None:
    async with running_stub_api_server() as stub, watching(stub) as (watches, reported):
        await until(lambda: every_kind_is_watched(stub))
        stub.objects[DEPLOYMENT] = [workers()]
        began = time.monotonic()
        await stub.send(DEPLOYMENT, "ERROR", {"code": 500, "message": "unexpected"})
        await until(lambda: reported.updates)
        await until(lambda: all(len(stub.watches(kind)) == 2 for kind in WATCHED))

        assert time.monotonic() - began < kopf_watches._RESTART_SECONDS + 2 * kopf_watches._CANCEL_SECONDS + 1
        assert not watches.ended.done()


async def test_an_expired_watch_lists_again_without_a_restart() -> None:
    async with running_stub_api_server() as stub, watching(stub) as (_, reported):
        await until(lambda: every_kind_is_watched(stub))
        stub.objects[DEPLOYMENT] = [workers()]
        await stub.send(DEPLOYMENT, "ERROR", {"code": 410, "message": "too old"})
        await until(lambda: reported.updates)

        assert len(stub.watches(MODEL_DEPLOYMENT)) == 1


async def test_all_tasks_of_kopf_end_when_they_are_cancelled() -> None:
    async with running_stub_api_server() as stub, watching(stub) as (watches, _):
        await until(lambda: every_kind_is_watched(stub))
        began = time.monotonic()
        await watches.stop()

        assert time.monotonic() - began < kopf_watches.STOP_SECONDS
        assert await watches.ended is None


async def test_kopf_does_not_look_up_its_user_when_it_has_an_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", unknown)
    async with running_stub_api_server() as stub, watching(stub):
        await until(lambda: every_kind_is_watched(stub))


async def test_the_warning_about_signals_comes_from_the_logger_that_is_silenced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="kopf"):
        async with running_stub_api_server() as stub, watching(stub):
            await until(lambda: every_kind_is_watched(stub))

    warnings = {record.name for record in caplog.records if "OS signals are ignored" in record.message}
    assert warnings == {"kopf._core.reactor.running"}


def test_the_storage_of_last_states_has_no_other_methods() -> None:
    """A new method would be inherited, and might copy or write objects."""
    public = {name for name, _ in inspect.getmembers(kopf.DiffBaseStorage, inspect.isfunction)}

    called_by_build = {"remove_annotations", "remove_empty_stanzas"}
    public = {name for name in public if not name.startswith("_")} - called_by_build
    assert public == {"build", "fetch", "store"}
    assert isinstance(kopf_watches._settings().persistence.diffbase_storage, kopf_watches._NoDifferences)
