"""One kind of object in one namespace, or in all: listed once, then followed by a watch.

The rules are client-go's: a watch goes on from the last version that was seen, also after the connection or
the API server was gone; 410 (that version is too old) means to list again, and until the new list is whole
the old one stays. Bookmarks keep the version young. A watch is asked to end after `watch_seconds`; one that
says nothing for a while longer hangs in a dead connection, and is given up.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from warmfleet_router.discovery.resources import Metadata
from warmfleet_router.errors import ApiServerError

MAX_OBJECTS: Final = 10_000
"""Per kind and namespace; more are not read."""
PAGE_OBJECTS: Final = 500
LONGEST_RETRY_AFTER_SECONDS: Final = 30.0
GONE: Final = 410

_log = structlog.get_logger("warmfleet.router.discovery")


class ApiServer(Protocol):
    """What is asked of the cluster's API server; the one seam for I/O."""

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The body of a 200.

        Raises:
            ApiServerError: anything else.
        """
        ...

    def lines(
        self, path: str, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """An empty line once the answer has begun, then the lines of its body until it ends.

        Raises:
            ApiServerError: no 200, the connection broke, or nothing came for `silence_seconds`.
        """
        ...


class ClusterObject(Protocol):
    """Whatever has metadata."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=ClusterObject)


@dataclass(frozen=True, slots=True)
class Watched(Generic[T]):
    """What is followed."""

    resource: str
    """`group/version/plural`."""
    type: type[T]
    namespace: str = ""
    """Empty: all."""
    label_selector: str = ""

    @property
    def path(self) -> str:
        """Below the API server's address."""
        group_version, _, plural = self.resource.rpartition("/")
        scope = f"namespaces/{self.namespace}/" if self.namespace else ""
        return f"/apis/{group_version}/{scope}{plural}"

    def __str__(self) -> str:
        plural = self.resource.rpartition("/")[2]
        return f"{plural} in namespace {self.namespace}" if self.namespace else f"{plural} in all namespaces"


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """Every window of an informer."""

    watch_seconds: float = 30.0
    """How long one watch lasts; its end shows that the connection still works."""
    slack_seconds: float = 5.0
    """A watch that has said nothing for this much longer is dead."""
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 10.0
    """So soon after it is back an API server is asked again."""
    settled_seconds: float = 5.0
    """A watch that lasted this long resets the backoff."""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _ListMetadata(
    msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "rest": "continue"}
):
    resource_version: str = ""
    rest: str = ""


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _AnyObject(msgspec.Struct, frozen=True):
    metadata: _ListMetadata = _ListMetadata()


class Informer(Generic[T]):
    """Keeps `objects` up to date while `run` runs; nothing that an API server does ends it."""

    def __init__(
        self,
        api: ApiServer,
        watched: Watched[T],
        *,
        timing: WatchTiming,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called after each change of `objects`, and of whether they are current."""
        self.watched = watched
        self.objects: dict[tuple[str, str], T] = {}
        """By namespace and name."""
        self.is_synced = False
        """Whether they were listed once."""
        self.problem = "not listed yet"
        """Why they may be out of date; empty while they are current."""
        self.current_at: float | None = None
        """When they were last known to be."""
        self.errors = 0
        self._api = api
        self._timing = timing
        self._clock = clock
        self._on_change = on_change
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
                # The task must outlive any answer: without it the router would keep its list for good.
                _log.exception("informer failed unexpectedly", watched=str(self.watched))
                least_seconds, failed = (
                    self._failed(ApiServerError("internal error", detail=repr(error))),
                    True,
                )
            if self._clock() - began >= timing.settled_seconds:
                backoff_seconds = timing.first_backoff_seconds
                if not failed:
                    continue
            # Also after a watch that ended well, but at once: whoever stands between may never let one last.
            jittered = backoff_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
            await asyncio.sleep(max(jittered, least_seconds))
            backoff_seconds = min(backoff_seconds * 2, timing.longest_backoff_seconds)

    # What happens.

    async def _list(self) -> None:
        objects: dict[tuple[str, str], T] = {}
        query = {"limit": str(PAGE_OBJECTS), **self._selector}
        while True:
            page = _decoded(await self._api.get(self.watched.path, query), _List)
            for item in page.items or ():
                self._keep(objects, item)
            if not page.metadata.rest:
                break
            query["continue"] = page.metadata.rest
        changed = not self.is_synced or objects != self.objects
        self.objects, self._version, self.is_synced = objects, page.metadata.resource_version, True
        self._current(changed=changed)

    async def _watch(self) -> None:
        seconds = self._timing.watch_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - routers should not ask in step
        query = {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(round(seconds), 1)),
            **self._selector,
        }
        silence_seconds = self._timing.watch_seconds + self._timing.slack_seconds
        async with aclosing(self._api.lines(self.watched.path, query, silence_seconds)) as lines:
            async for line in lines:
                self._current(changed=self._take(line) if line else False)
        self._current()

    def _take(self, line: bytes) -> bool:
        """One event; whether it changed anything."""
        event = _decoded(line, _Event)
        if event.type == "ERROR":
            status = _decoded(event.object, _Status)
            raise ApiServerError(
                f"ended the watch with {status.code}", detail=status.message, status=status.code
            )
        version = _decoded(event.object, _AnyObject).metadata.resource_version
        changed = False
        if event.type in {"ADDED", "MODIFIED"}:
            changed = self._keep(self.objects, event.object)
        elif event.type == "DELETED":
            found = self._object(event.object)
            key = _key(found) if found is not None else None
            changed = key is not None and self.objects.pop(key, None) is not None
        self._version = version or self._version
        return changed

    def _keep(self, objects: dict[tuple[str, str], T], content: msgspec.Raw) -> bool:
        found = self._object(content)
        if found is None:
            return False
        key = _key(found)
        if key not in objects and len(objects) >= MAX_OBJECTS:
            _log.warning(
                "an object is not read, there are too many", watched=str(self.watched), limit=MAX_OBJECTS
            )
            return False
        changed = objects.get(key) != found
        objects[key] = found
        return changed

    def _object(self, content: msgspec.Raw) -> T | None:
        """The object; None for one that cannot be read, of which the last readable state stays."""
        try:
            return self._decoder.decode(content)
        except msgspec.MsgspecError as error:
            _log.warning("an object cannot be read", watched=str(self.watched), reason=str(error))
            return None

    def _current(self, *, changed: bool = False) -> None:
        self.current_at = self._clock()
        if self.problem:
            self.problem, changed = "", True
        if changed:
            self._on_change()

    def _failed(self, error: ApiServerError) -> float:
        """Write the failure down; answers how long to wait at least."""
        self.errors += 1
        if error.status == GONE:
            self._version = ""
        text = f"{self.watched}: {error}"
        if text != self.problem:
            _log.warning(
                "discovery is behind, the last list stays",
                watched=str(self.watched),
                reason=str(error),
                detail=error.detail[:512],
            )
            self.problem = text
            self._on_change()
        return min(error.retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)

    @property
    def _selector(self) -> dict[str, str]:
        return {"labelSelector": self.watched.label_selector} if self.watched.label_selector else {}


def _key(found: ClusterObject) -> tuple[str, str]:
    return found.metadata.namespace, found.metadata.name


_Decoded = TypeVar("_Decoded")


def _decoded(content: bytes | msgspec.Raw, expected: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(content, type=expected)
    except msgspec.MsgspecError as error:
        # What cannot be read as a whole leaves a hole in the stream: only a new list closes it.
        raise ApiServerError("sends what cannot be read", detail=str(error), status=GONE) from error
