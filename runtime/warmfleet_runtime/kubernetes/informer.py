"""A local copy of one kind of object: listed once, then followed by a watch.

The rules are client-go's: a watch goes on from the last version that was seen, also after the connection or
the API server was gone; 410 (that version is too old) means to list again, and until the new list is complete
the old one stays. Bookmarks keep the version young. A watch is asked to end after `watch_seconds`; one
without any event for a while longer hangs in a dead connection, and is given up.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.kubernetes.decoding import decoded
from warmfleet_runtime.kubernetes.errors import ApiServerError, UnreadableError
from warmfleet_runtime.kubernetes.lists import ReadsLists, list_pages
from warmfleet_runtime.kubernetes.paths import resource_path

MAX_OBJECTS: Final = 10_000
"""Per kind and namespace; more are not read."""
LONGEST_RETRY_AFTER_SECONDS: Final = 30.0
FORBIDDEN: Final = 403
GONE: Final = 410

_log = structlog.get_logger("warmfleet.kubernetes")

T = TypeVar("T")


class ListWatchApi(ReadsLists, Protocol):
    """What an informer needs of a client; `KubernetesClient` is one."""

    def lines(
        self, path: str, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """An empty line once the response has begun, then the lines of its body until it ends.

        Raises:
            ApiServerError: no 2xx, the connection broke, or nothing came for `silence_seconds`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Watched(Generic[T]):
    """The objects that an informer follows."""

    api_version: str
    plural: str
    type: type[T]
    """What an object is decoded to: a `msgspec.Struct` of the fields needed, or a `dict` for all of them."""
    namespace: str = ""
    """Empty: all."""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """Below the API server's URL."""
        return resource_path(self.api_version, self.plural, namespace=self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """Selectors, as list and watch take them."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: selector for name, selector in selectors.items() if selector}

    def __str__(self) -> str:
        return (
            f"{self.plural} in namespace {self.namespace}"
            if self.namespace
            else f"{self.plural} in all namespaces"
        )


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Every duration of an informer."""

    watch_seconds: float = 30.0
    """How long one watch lasts; its end shows that the connection still works."""
    slack_seconds: float = 5.0
    """A watch without an event for this much longer is dead."""
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 10.0
    """At most this long after it is back an API server is asked again."""
    settled_seconds: float = 5.0
    """A watch that lasted this long resets the backoff."""


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """One object that is new, changed or deleted."""

    object: T
    """Its state now; its last known one if it is deleted."""
    is_deleted: bool = False


class _ObjectMetadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _AnyObject(msgspec.Struct, frozen=True):
    metadata: _ObjectMetadata = _ObjectMetadata()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""


class Informer(Generic[T]):
    """Keeps `objects` up to date while `run` runs; no answer of an API server ends it.

    Use it for objects that are read often or whose changes matter; for one read, ask the client.

        pods = Informer(client, Watched("v1", "pods", dict[str, Any]), on_change=changed.set)
        asyncio.create_task(pods.run())
        await pods.synced.wait()
    """

    def __init__(
        self,
        client: ListWatchApi,
        watched: Watched[T],
        *,
        timing: WatchTiming | None = None,
        max_objects: int = MAX_OBJECTS,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
        on_object: Callable[[ObjectChange[T]], None] = lambda _: None,
    ) -> None:
        """Callbacks run in the task of `run` and must not raise.

        Args:
            client: asked for lists and watches.
            watched: what is followed.
            timing: durations; None: the defaults.
            max_objects: objects beyond these are not read.
            clock: seconds, monotonic.
            on_change: called after each change of `objects` or of `problem`.
            on_object: called for each object that is new, changed or deleted, before `on_change`.
        """
        self.watched: Final = watched
        self.objects: dict[str, T] = {}
        """By uid."""
        self.synced: Final = asyncio.Event()
        """Set once the objects were listed."""
        self.problem = "not listed yet"
        """Why `objects` may be out of date; empty while they are current."""
        self.current_at: float | None = None
        """When `objects` were last known to be current, by `clock`."""
        self.refused_since: float | None = None
        """Since when the API server answers 403, by `clock`; None while it does not."""
        self.errors = 0
        """Failed lists and watches so far."""
        self._client = client
        self._timing = timing if timing is not None else WatchTiming()
        self._max_objects = max_objects
        self._clock = clock
        self._on_change = on_change
        self._on_object = on_object
        self._version = ""  # to watch from; empty: list
        self._decoder = msgspec.json.Decoder(watched.type)

    async def run(self) -> None:
        """List and watch until cancelled."""
        timing = self._timing
        backoff_seconds = timing.first_backoff_seconds
        while True:
            began, least_seconds, failed = self._clock(), 0.0, False
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiServerError as error:
                least_seconds, failed = self._failed(error), True
            except Exception as error:  # noqa: BLE001
                # The task must outlive any answer: without it the copy would stay as it is for good.
                _log.exception("informer failed unexpectedly", watched=str(self.watched))
                least_seconds, failed = (
                    self._failed(ApiServerError("internal error", message=repr(error))),
                    True,
                )
            if self._clock() - began >= timing.settled_seconds:
                backoff_seconds = timing.first_backoff_seconds
                if not failed:
                    continue
            # Also after a watch that ended well, but at once: a proxy in between may never let one last.
            jittered = backoff_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
            await asyncio.sleep(max(jittered, least_seconds))
            backoff_seconds = min(backoff_seconds * 2, timing.longest_backoff_seconds)

    async def _list(self) -> None:
        objects: dict[str, T] = {}
        version = ""
        async for page in list_pages(self._client, self.watched.path, self.watched.query):
            for item in page.items or ():
                self._store(objects, item)
            version = page.metadata.resource_version
        previous, self.objects, self._version = self.objects, objects, version
        self.synced.set()
        deleted = [
            ObjectChange(last, is_deleted=True) for uid, last in previous.items() if uid not in objects
        ]
        changed = [ObjectChange(found) for uid, found in objects.items() if previous.get(uid) != found]
        self._publish([*deleted, *changed])

    async def _watch(self) -> None:
        # Processes that started together should not ask together.
        seconds = self._timing.watch_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, no secret
        query = {
            **self.watched.query,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(round(seconds), 1)),
        }
        silence_seconds = self._timing.watch_seconds + self._timing.slack_seconds
        async with aclosing(self._client.lines(self.watched.path, query, silence_seconds)) as lines:
            async for line in lines:
                self._publish(self._apply(line) if line else ())
        self._publish(())

    def _apply(self, line: bytes) -> Sequence[ObjectChange[T]]:
        """Apply one event to `objects`; returns what changed."""
        event = decoded(line, _Event)
        if event.type == "ERROR":
            status = decoded(event.object, _Status)
            raise ApiServerError(
                f"ended the watch with {status.code}",
                message=status.message,
                status=status.code,
                reason=status.reason,
            )
        metadata = decoded(event.object, _AnyObject).metadata
        self._version = metadata.resource_version or self._version
        if event.type == "DELETED":
            last = self.objects.pop(metadata.uid, None)
            return () if last is None else (ObjectChange(last, is_deleted=True),)
        if event.type in {"ADDED", "MODIFIED"}:
            found = self._store(self.objects, event.object)
            return () if found is None else (ObjectChange(found),)
        return ()  # a bookmark

    def _store(self, objects: dict[str, T], content: msgspec.Raw) -> T | None:
        """Put an object into `objects`; returns it if it differs from what was there.

        An object that cannot be decoded keeps its last decoded state.
        """
        try:
            uid = msgspec.json.decode(content, type=_AnyObject).metadata.uid
            found = self._decoder.decode(content)
        except UNDECODABLE as error:
            _log.warning("an object cannot be read", watched=str(self.watched), reason=str(error))
            return None
        if uid not in objects and len(objects) >= self._max_objects:
            _log.warning(
                "an object is not read, there are too many",
                watched=str(self.watched),
                limit=self._max_objects,
            )
            return None
        unchanged = objects.get(uid) == found
        objects[uid] = found
        return None if unchanged else found

    def _publish(self, changes: Sequence[ObjectChange[T]]) -> None:
        """`objects` are current; report what changed."""
        self.current_at = self._clock()
        self.refused_since = None
        was_behind, self.problem = self.problem != "", ""
        for change in changes:
            self._on_object(change)
        if changes or was_behind:
            self._on_change()

    def _failed(self, error: ApiServerError) -> float:
        """Record a failure; returns how long to wait at least, in seconds."""
        self.errors += 1
        if error.status != FORBIDDEN:
            self.refused_since = None
        elif self.refused_since is None:
            self.refused_since = self._clock()
        if error.status == GONE or isinstance(error, UnreadableError):
            # What cannot be read as a whole leaves a hole in the stream: only a new list closes it.
            self._version = ""
        text = f"{self.watched}: {error.summary}"
        if text != self.problem:
            _log.warning(
                "watch interrupted, the last list stays",
                watched=str(self.watched),
                reason=error.summary,
                detail=error.message[:512],
            )
            self.problem = text
            self._on_change()
        return min(error.retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)
