"""kopf as informer: it watches, and what it sees goes into the store. The only module that imports kopf.

Nothing else of kopf is used: no handler that writes, no finalizer, no peering, no events of its own. It runs
in a thread of its own, because ending it means to cancel every task of the loop that it runs in.

kopf gives up for good where an API server answers a watch with what it does not expect, and then does not
always end: a watch that is cancelled at the wrong moment goes on as if nothing had happened. So its tasks are
watched from here, and one that fails is the end of them all and a new beginning.
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
from warmfleet_operator.watch.store import Entry, Key, entry_of

STOP_SECONDS: Final = 5.0
_PAGE_SIZE: Final = 50
"""Small: what a page holds is kept as dictionaries until every object of it has been seen."""
_KEPT_SECONDS: Final = 0.1
"""For so long kopf holds on to the last state of an object that nothing happens to."""
_PAUSES_SECONDS: Final = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Between two tries of one request; the last one from then on."""
_ANEW_SECONDS: Final = 2.0
"""Between two lives of kopf."""
_CANCEL_SECONDS: Final = 0.5
_CANCEL_ROUNDS: Final = 8

log = structlog.get_logger("warmfleet.operator")

_IDENTITY: Final[Any] = "warmfleet-operator"
"""Given, because kopf would else look up its user's name, and an arbitrary uid of a pod has none."""


class Informer:
    """Watches every kind in its own thread, and reports to the loop that made it."""

    def __init__(
        self,
        *,
        namespaces: Sequence[str],
        connect: Callable[[], Awaitable[Connection]],
        on_seen: Callable[[Entry], None],
        on_gone: Callable[[Kind, Key, str], None],
    ) -> None:
        """`connect`, `on_seen` and `on_gone` are called in the loop that makes the informer."""
        self._namespaces = tuple(namespaces)
        self._connect = connect
        self._on_seen = on_seen
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._news: deque[tuple[bool, Entry]] = deque()
        """Whether an object is gone, and its last state; added by one thread, taken by the other."""
        self._told = False
        """Waking the other loop per object would cost a wait for the interpreter's lock each time."""
        self._stop = threading.Event()
        self.ended: Final = self._loop.create_future()
        """Done when the thread has ended: of itself only when kopf gave up, for the reason it holds."""
        self._thread = threading.Thread(target=self._run, name="informer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End the watches; returns when the thread is gone, or is given up."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # noqa: BLE001 - whatever ended the thread is the operator's end, too
            problem = error
        self._loop.call_soon_threadsafe(self._say_ended, problem)

    def _say_ended(self, problem: BaseException | None) -> None:
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
            log.warning("watches begin anew", reason=reason, after_seconds=_ANEW_SECONDS)
            await asyncio.wait([stopping], timeout=_ANEW_SECONDS)
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
            # Cut down here, so that the whole object does not live until the other loop has time for it.
            self._news.append((event["type"] == "DELETED", entry_of(kind, event["object"])))
            if not self._told:
                self._told = True
                self._loop.call_soon_threadsafe(self._take_news)

        return report

    def _take_news(self) -> None:
        self._told = False  # first: what is added from here on is told anew
        while self._news:
            is_gone, entry = self._news.popleft()
            if is_gone:
                self._on_gone(entry.kind, entry.key, entry.uid)
            else:
                self._on_seen(entry)


class _NoDifferences(kopf.DiffBaseStorage):
    """Finds no difference between two states of an object, because nobody asks.

    kopf's own copies every object, managed fields and all, five times per event: two thirds of what it costs.
    """

    def build(self, **_: object) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> None:
        return None

    def store(self, **_: object) -> None:
        """Nothing is ever stored on an object."""


class _Pauses:
    """The pauses of one request's tries: it is tried for as long as the API server is away."""

    def __iter__(self) -> Iterator[float]:
        yield from _PAUSES_SECONDS
        while True:
            yield _PAUSES_SECONDS[-1]


def _reason(ended: Collection["asyncio.Task[Any]"]) -> str:
    """What the first task that failed says; empty if none did."""
    problems = (task.exception() for task in ended if not task.cancelled())
    return next((f"{type(problem).__name__}: {problem}" for problem in problems if problem), "")


async def _cancel_all_but(spared: "asyncio.Task[Any]") -> None:
    """Cancel every other task of this loop until it ends.

    Raises:
        OperatorError: some task does not.
    """
    for _ in range(_CANCEL_ROUNDS):
        tasks = asyncio.all_tasks() - {spared, asyncio.current_task()}
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        _reason(done)  # retrieved, so that nobody complains that it was not
    raise OperatorError("the watches do not end")


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
    settings.queueing.idle_timeout = _KEPT_SECONDS
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = None
    settings.execution.max_workers = 1
    return settings
