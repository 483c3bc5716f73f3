"""Discovered endpoints, their event streams, and the status of each worker for the picker."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import msgspec
import structlog

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_contracts.cache.kv_events import Frame, Hello, LoadReport
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_router.discovery.base import Discovered, Discovery, Endpoint, vetted_endpoints
from warmfleet_router.errors import DiscoveryError
from warmfleet_router.workers.event_stream import StreamCounts, StreamTiming, WorkerStream
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.stream_follower import EventSource, follow

_log = structlog.get_logger()


class WorkerStatus(msgspec.Struct, frozen=True):
    """What the router knows of one worker at one moment; routing reads this and the index."""

    endpoint: Endpoint
    hello: Hello | None
    """What the worker proved to be; None before its first verified hello."""
    ready: bool
    """Whether prompts may be sent, as the docstring of `event_stream` defines it."""
    unready_reason: str
    """Why not, without addresses; empty for a ready worker."""
    precise: bool
    """Whether the index knows this worker's blocks. A ready worker without that is routed by load only."""
    load: LoadReport
    """The last report; all zeros before the first of the worker's present epoch."""
    reported_at: float | None
    """When `load` came, on `clock`; None before the first."""
    resident_blocks: int
    counts: StreamCounts
    """Live counters of the stream, for metrics."""
    clock: Callable[[], float] = time.monotonic
    start: StartPhases = StartPhases()
    """How long the start of its process took."""

    @property
    def report_age_seconds(self) -> float:
        """Age of `load` now; infinite before the first."""
        return self.clock() - self.reported_at if self.reported_at is not None else math.inf

    @property
    def identity(self) -> bytes:
        """Of its cache; empty before the first hello."""
        return self.hello.identity if self.hello is not None else b""

    @property
    def epoch(self) -> str:
        """Epoch of the worker process that proved itself; empty before the first hello."""
        return self.hello.epoch if self.hello is not None else ""

    @property
    def served_names(self) -> Sequence[str]:
        """Model names that this endpoint answers to: the discovered ones that it knows, else its own."""
        return served_names(self.endpoint, self.hello)


class _View(msgspec.Struct, frozen=True):
    """One worker as it was after the last event of its stream."""

    stream: WorkerStream
    status: WorkerStatus
    names: frozenset[str]
    """Model names that it serves."""
    until: float
    """From then on the status is another one, although nothing happened."""


class Fleet:
    """Follows one event stream per discovered endpoint. A worker that leaves the list is forgotten at once.

    await fleet.start()
    ready = [worker for worker in fleet.workers("org/model") if worker.ready]
    await fleet.stop()

    `index` is shared with the picker. `on_frame(uid, frame)` is called for each frame of a verified worker,
    `on_change` when a load was reported, a worker was lost or the list of endpoints changed, and
    `on_gone(uid)` for each worker that left the list, so that other per-worker state can go too.
    `on_models` is called with all names of models when the list may have changed.
    `on_ended(uid, epoch)` is called when a worker's process is gone that was not draining.
    `contract_versions` are those that it speaks with workers.
    """

    def __init__(
        self,
        discovery: Discovery,
        source: EventSource,
        *,
        index: PrefixIndex | None = None,
        timing: StreamTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_frame: Callable[[str, Frame], None] = lambda _uid, _frame: None,
        on_change: Callable[[], None] = lambda: None,
        on_models: Callable[[Collection[str]], None] = lambda _names: None,
        on_gone: Callable[[str], None] = lambda _uid: None,
        on_ended: Callable[[str, str], None] = lambda _uid, _epoch: None,
        contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
    ) -> None:
        self.index = index if index is not None else PrefixIndex()
        self._discovery = discovery
        self._source = source
        self._timing = timing if timing is not None else StreamTiming()
        self._clock = clock
        self._on_frame = on_frame
        self._on_change = on_change
        self._on_models = on_models
        self._on_gone = on_gone
        self._on_ended = on_ended
        self._contract_versions = contract_versions
        self._streams: dict[str, WorkerStream] = {}
        self._views: dict[str, _View] = {}
        self._serving: dict[str, dict[str, WorkerStatus]] = {}
        """Statuses of `_views` by model and uid, in order of discovery."""
        self._stands_until = math.inf
        """From then on the status of a view may be another one."""
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._names: frozenset[str] | None = None
        self._hold_seconds: Mapping[str, float] = {}
        self._owners: Mapping[str, str] = {}

    async def start(self) -> None:
        """Begin to watch discovery and to open streams; returns at once."""
        self._watcher = asyncio.create_task(self._watch(), name="discovery")

    async def stop(self) -> None:
        """Close every stream; returns when all are closed."""
        tasks = [*self._followers.values(), *([self._watcher] if self._watcher else [])]
        self._followers.clear()
        self._watcher = None
        await _cancelled(tasks)

    def workers(self, model: str | None = None) -> list[WorkerStatus]:
        """Every endpoint, in order of discovery; with `model`, those that serve it."""
        now = self._clock()
        if model is not None and now < self._stands_until:
            return list(self._serving.get(model, {}).values())
        return [
            view.status if now < view.until else self._status(view.stream, now)
            for view in self._views.values()
            if model is None or model in view.names
        ]

    def worker(self, uid: str) -> WorkerStatus | None:
        """One endpoint; None if it is not (or no longer) discovered."""
        stream = self._streams.get(uid)
        return self._status(stream, self._clock()) if stream is not None else None

    def seconds_since_last_message(self, uid: str) -> float:
        """Time since a worker's last message on its event stream; 0 for one that is not followed."""
        stream = self._streams.get(uid)
        return stream.seconds_since_last_message(self._clock()) if stream is not None else 0.0

    def models(self) -> list[str]:
        """Every name of the fleet, sorted, also those that no worker serves now."""
        streams = self._streams.values()
        served = (served_names(stream.endpoint, stream.hello) for stream in streams)
        return sorted((self._names or frozenset()).union(*served))

    def hold_seconds(self, model: str) -> float | None:
        """How long a request for `model` may be held while it sleeps; None if it may not sleep."""
        return self._hold_seconds.get(model)

    def owner(self, model: str) -> str | None:
        """The ModelDeployment, `namespace/name`, that has this name; None where none is known."""
        return self._owners.get(model)

    @property
    def knows_its_models(self) -> bool:
        """Whether discovery lists all models, so that `models` is complete."""
        return self._names is not None

    async def reconcile(self, discovered: Discovered) -> None:
        """Follow exactly the endpoints of `discovered`. One whose address or token changed is opened anew.

        Raises:
            DiscoveryError: the list is unusable; everything stays as it is.
        """
        wanted = {endpoint.uid: endpoint for endpoint in vetted_endpoints(discovered.endpoints)}
        self._names = discovered.names
        self._hold_seconds = discovered.hold_seconds
        self._owners = discovered.owners
        gone = [
            uid
            for uid, stream in self._streams.items()
            if uid not in wanted or not stream.endpoint.is_reached_like(wanted[uid])
        ]
        for uid in gone:
            stream = self._streams.pop(uid)
            self._show(uid, None)
            if uid not in wanted:
                stream.ended()
        await _cancelled([self._followers.pop(uid) for uid in gone])
        for uid in gone:
            self.index.forget(uid)
            if uid not in wanted:
                self._on_gone(uid)
        for uid, endpoint in wanted.items():
            if uid in self._streams:
                self._streams[uid].endpoint = endpoint  # another name, owner or policy: the same worker
            else:
                stream = WorkerStream(
                    endpoint,
                    self.index,
                    self._timing,
                    self._on_frame,
                    self._on_change,
                    on_ended=self._on_ended,
                    on_event=partial(self._observe, uid),
                )
                self._streams[uid] = stream
                self._observe(uid)
                self._followers[uid] = asyncio.create_task(
                    follow(
                        stream,
                        self._source,
                        timing=self._timing,
                        clock=self._clock,
                        versions=self._contract_versions,
                    ),
                    name=f"event stream of {endpoint.name}",
                )
        self._on_models(self.models())
        self._on_change()

    async def _watch(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._discovery.watch()) as lists:
                    async for discovered in lists:
                        try:
                            await self.reconcile(discovered)
                        except DiscoveryError as error:
                            _log.warning("endpoint list refused, the last one stays", reason=str(error))
            except Exception:  # noqa: BLE001
                # Discovery may fail in any way: requests go on to the last good list.
                _log.exception("discovery failed, the last endpoint list stays")
            else:
                return
            await asyncio.sleep(self._timing.longest_backoff_seconds)

    def _observe(self, uid: str) -> None:
        """Look at a worker after an event, so that requests need not."""
        stream = self._streams.get(uid)
        if stream is None:
            return  # it left the list, and its stream is being closed
        now = self._clock()
        self._show(uid, self._view(stream, now))
        if now >= self._stands_until:
            self._stands_until = math.inf
            for other, view in list(self._views.items()):
                self._show(other, view if now < view.until else self._view(view.stream, now))

    def _show(self, uid: str, view: _View | None) -> None:
        """Keep a worker as it is now; None: it is gone."""
        before = self._views.pop(uid, None) if view is None else self._views.get(uid)
        if view is not None:
            self._views[uid] = view
            self._stands_until = min(self._stands_until, view.until)
        names = view.names if view is not None else frozenset[str]()
        for name in names.symmetric_difference(before.names if before is not None else ()):
            # Where it stands among the others is where it was discovered.
            serving = {other: one.status for other, one in self._views.items() if name in one.names}
            self._serving.pop(name, None)
            if serving:
                self._serving[name] = serving
        if view is not None:
            for name in names:
                self._serving[name][uid] = view.status

    def _view(self, stream: WorkerStream, now: float) -> _View:
        return _View(
            stream=stream,
            status=self._status(stream, now),
            names=frozenset(served_names(stream.endpoint, stream.hello)),
            until=stream.unchanged_until(now),
        )

    def _status(self, stream: WorkerStream, now: float) -> WorkerStatus:
        uid = stream.endpoint.uid
        reason = stream.unready_reason(now)
        return WorkerStatus(
            endpoint=stream.endpoint,
            hello=stream.hello,
            ready=not reason,
            unready_reason=reason,
            precise=self.index.is_precise(uid) and stream.is_current(now),
            load=stream.load,
            reported_at=stream.load_at,
            resident_blocks=self.index.resident_blocks(uid),
            start=stream.start,
            counts=stream.counts,
            clock=self._clock,
        )


def serves(endpoint: Endpoint, hello: Hello | None, name: str) -> bool:
    """Discovery decides which endpoints own a name; where it lists none, the worker's own names count.

    A worker that began before its deployment got a name does not know it, and gets no requests by it.
    """
    if hello is None:
        return name in endpoint.served_names
    return name in hello.served_names and (not endpoint.served_names or name in endpoint.served_names)


def served_names(endpoint: Endpoint, hello: Hello | None) -> list[str]:
    """All names that it `serves`, in the order of the list that counts."""
    listed = endpoint.served_names or (hello.served_names if hello is not None else ())
    return [name for name in listed if serves(endpoint, hello, name)]


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
