"""Watches the cluster by kopf and reports every change. The only module that imports kopf.

Decision 0012 lists what kopf is used for, what not, and the tests that fail when it changes. It runs in a
thread of its own, because its tasks are stopped by cancelling every task of their event loop.

After an unexpected answer to a watch kopf stops for good, and not always completely: a watch that is
cancelled at the wrong moment continues. So this module waits for the first of kopf's tasks to fail, cancels
all of them until they end, and starts kopf again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Final

import kopf
import structlog

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_operator.cluster import Connection
from warmfleet_operator.errors import OperatorError
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT, WATCHED, Kind
from warmfleet_operator.watch.entry import Entry, Key, entry_of

STOP_SECONDS: Final = 5.0
_PAGE_SIZE: Final = 50
"""Small: the objects of a page stay in memory as dictionaries until all of them were reported."""
_IDLE_SECONDS: Final = 0.1
"""kopf keeps the last state of an unchanged object for this long."""
_BACKOFFS_SECONDS: Final = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Between the attempts of one request; the last value repeats."""
_RESTART_SECONDS: Final = 2.0
"""Between the end of kopf's tasks and their restart."""
_CANCEL_SECONDS: Final = 0.5
_CANCEL_ROUNDS: Final = 8

log = structlog.get_logger("warmfleet.operator")

_IDENTITY: Final[Any] = "warmfleet-operator"
"""Without it kopf looks up the name of its user, and the arbitrary uid of a pod has none."""


class KopfWatches:
    """Watches every kind in its own thread, and reports to the event loop that created it.

    watches = KopfWatches(namespaces=(), connect=connection, on_update=store.put, on_delete=store.drop)
    watches.start()
    await watches.stop()
    """

    def __init__(
        self,
        *,
        namespaces: Sequence[str],
        connect: Callable[[], Awaitable[Connection]],
        on_update: Callable[[Entry], None],
        on_delete: Callable[[Kind, Key, str], None],
    ) -> None:
        """`connect`, `on_update` and `on_delete` are called in the event loop that creates this object."""
        self._namespaces = tuple(namespaces)
        self._connect = connect
        self._on_update = on_update
        self._on_delete = on_delete
        self._loop = asyncio.get_running_loop()
        self._changes: deque[tuple[bool, Entry]] = deque()
        """Whether an object was deleted, and its last state. kopf's thread appends, the other one removes."""
        self._delivery_scheduled = False
        """One wake-up delivers many changes: each wake-up waits for the interpreter's lock."""
        self._stop = threading.Event()
        self.ended: Final = self._loop.create_future()
        """Done when the thread has ended. Its result is the error, None after `stop`."""
        self._thread = threading.Thread(target=self._run, name="kopf watches", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop the watches; returns when the thread has ended, or after STOP_SECONDS."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # noqa: BLE001 - any error that ends the thread ends the operator
            problem = error
        self._loop.call_soon_threadsafe(self._set_ended, problem)

    def _set_ended(self, problem: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(problem)

    async def _watch(self) -> None:
        stopping = asyncio.create_task(asyncio.to_thread(self._stop.wait))
        while True:
            tasks = await kopf.spawn_tasks(
                registry=self._registry(),
                settings=_settings(),
                standalone=True,
                identity=_IDENTITY,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
            )
            ended, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            reason = _reason(ended - {stopping})
            await _cancel_all_but(stopping)
            if stopping.done():
                return
            log.warning("watches restart", reason=reason, after_seconds=_RESTART_SECONDS)
            await asyncio.wait([stopping], timeout=_RESTART_SECONDS)
            if stopping.done():
                return

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: object) -> kopf.ConnectionInfo:
            future = asyncio.run_coroutine_threadsafe(self._connected(), self._loop)
            connection = await asyncio.wrap_future(future)
            return kopf.ConnectionInfo(
                server=connection.server,
                ca_path=connection.ca_path,
                token=connection.token,
                certificate_path=connection.certificate_path,
                private_key_path=connection.key_path,
            )

        kopf.on.login(registry=registry)(login)
        for kind in WATCHED:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
                self._reporter(kind)
            )
        return registry

    async def _connected(self) -> Connection:
        return await self._connect()

    def _reporter(self, kind: Kind) -> Callable[..., Awaitable[None]]:
        async def report(event: Any, **_: object) -> None:
            # Reduced here, so that the whole object is not kept until the other loop runs.
            self._changes.append((event["type"] == "DELETED", entry_of(kind, event["object"])))
            if not self._delivery_scheduled:
                self._delivery_scheduled = True
                self._loop.call_soon_threadsafe(self._deliver_changes)

        return report

    def _deliver_changes(self) -> None:
        self._delivery_scheduled = False  # first: a change appended from here on schedules a new delivery
        while self._changes:
            deleted, entry = self._changes.popleft()
            if deleted:
                self._on_delete(entry.kind, entry.key, entry.uid)
            else:
                self._on_update(entry)


class _NoDifferences(kopf.DiffBaseStorage):
    """Stores no last state of an object and finds no difference: no handler reads one.

    kopf's default copies every object five times per event, which takes two thirds of its CPU time.
    """

    def build(self, **_: object) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> None:
        return None

    def store(self, **_: object) -> None:
        """Writes nothing to the object."""


class _Backoffs:
    """The backoffs of one request, without end: it is retried for as long as the API server is away."""

    def __iter__(self) -> Iterator[float]:
        yield from _BACKOFFS_SECONDS
        while True:
            yield _BACKOFFS_SECONDS[-1]


def _reason(ended: Collection["asyncio.Task[Any]"]) -> str:
    """The error of the first failed task; empty if none failed."""
    problems = (task.exception() for task in ended if not task.cancelled())
    return next((f"{type(problem).__name__}: {problem}" for problem in problems if problem), "")


async def _cancel_all_but(kept: "asyncio.Task[Any]") -> None:
    """Cancel every other task of this event loop, repeatedly, until all have ended.

    Raises:
        OperatorError: some task does not end.
    """
    for _ in range(_CANCEL_ROUNDS):
        tasks = asyncio.all_tasks() - {kept, asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        _reason(done)  # retrieved, so that asyncio does not log them
    raise OperatorError("the tasks of kopf do not end")


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # no rights on namespaces and CustomResourceDefinitions needed
    watching = settings.watching
    watching.server_timeout = 300
    watching.client_timeout = 330
    watching.connect_timeout = 10
    watching.inactivity_timeout = 75  # bookmarks come every minute
    watching.chunk_size = _PAGE_SIZE
    for kind in WATCHED:
        if kind is not MODEL_DEPLOYMENT:
            watching.label_selectors[kind.group, kind.version, kind.plural] = MODEL_DEPLOYMENT_LABEL
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Backoffs()
    settings.process.ultimate_exiting_timeout = None
    settings.execution.max_workers = 1
    return settings
