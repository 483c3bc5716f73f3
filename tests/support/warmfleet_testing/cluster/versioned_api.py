"""An API server's list and watch, modelled with a log of events: the oracle of an informer."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import GONE


@dataclass
class VersionedApi:
    """Every change has a version; a watch from one replays what came later, and goes on after each `wait`.

    Belongs to one event loop: a change from another thread could be half done when a watch looks.
    `interrupt` is asked before each answer and each event: what it returns is raised.
    """

    wait: Callable[[], Any]
    interrupt: Callable[[], ApiServerError | None] = lambda: None
    page_objects: int = 2
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path: `namespaces/n/plural/name`, without the group."""
    log: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    compacted: int = 0
    """Watches from before this version get 410."""
    version: int = 10
    lists: int = 0
    watched_from: list[int] = field(default_factory=list)

    def put(self, plural: str, name: str, content: Mapping[str, Any] | None = None) -> None:
        """Create or replace an object of namespace `n`."""
        self.version += 1
        path = f"{plural}/{name}"
        metadata = {
            "name": name,
            "namespace": "n",
            "uid": f"uid-{name}",
            "resourceVersion": str(self.version),
        }
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = {"metadata": metadata, **(content or {})}
        self.objects[path]["metadata"] = {**metadata, **(content or {}).get("metadata", {})}
        self.log.append((self.version, kind, plural, self.objects[path]))

    def delete(self, plural: str, name: str) -> None:
        self.version += 1
        gone = self.objects.pop(f"{plural}/{name}", None)
        if gone is not None:
            last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self.log.append((self.version, "DELETED", plural, last))

    def compact(self) -> None:
        """Forget what happened so far."""
        self.compacted = self.version

    async def read(self, path: str, query: Mapping[str, str], *, accept: str = "") -> bytes:
        """See `ListWatchApi`."""
        del accept
        self._interrupted()
        plural, start = path.rpartition("/")[2], int(query.get("continue", "0"))
        self.lists += start == 0
        items = [content for key, content in self.objects.items() if key.startswith(f"{plural}/")]
        page = items[start : start + self.page_objects]
        more = start + self.page_objects < len(items)
        metadata = {"resourceVersion": str(self.version), "continue": str(start + len(page)) if more else ""}
        return json.dumps({"kind": "List", "metadata": metadata, "items": page}).encode()

    async def lines(
        self, path: str, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """See `ListWatchApi`."""
        del silence_seconds
        self._interrupted()
        seen, plural = int(query["resourceVersion"]), path.rpartition("/")[2]
        self.watched_from.append(seen)
        if seen < self.compacted:
            raise ApiServerError("too old", status=GONE)
        yield b""
        while True:
            for version, kind, of, content in self.log:
                if version > seen and of == plural:
                    self._interrupted()
                    yield json.dumps({"type": kind, "object": content}).encode()
            seen = self.version  # before the reader has the bookmark: meanwhile there may be a change
            bookmark = {"metadata": {"resourceVersion": str(seen)}}
            yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode()
            if not await self.wait():
                return

    @asynccontextmanager
    async def connect(self, kubeconfig: Path | None) -> AsyncGenerator["VersionedApi", None]:
        """As `KubernetesClient.connect`."""
        del kubeconfig
        self._interrupted()
        yield self

    def _interrupted(self) -> None:
        error = self.interrupt()
        if error is not None:
            raise error
