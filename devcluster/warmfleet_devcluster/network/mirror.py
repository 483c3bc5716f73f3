"""A local copy of one kind of object, kept up to date by list and watch."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from warmfleet_devcluster.api_client import ApiClient, ApiError

_RETRY_SECONDS: Final = 1.0
_GONE: Final = 410

Json = dict[str, Any]

log = structlog.get_logger()


class Mirror:
    """Objects under one API path by namespace and name. `changed` is called after every change."""

    def __init__(self, client: ApiClient, path: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._objects: dict[tuple[str, str], Json] = {}
        self.listed = asyncio.Event()
        """Set once the copy was complete for the first time."""

    @property
    def objects(self) -> list[Json]:
        return list(self._objects.values())

    async def run(self) -> None:
        """Follow the API server for ever; while it is away the last copy stands."""
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                async for event in self._client.watch(self._path, {"resourceVersion": version}):
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._apply(event)
            except ApiError as error:
                if error.status == _GONE:
                    version = ""
                    continue
                log.warning("watch broke off", path=self._path, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        found = await self._client.get(self._path)
        self._objects = {_key(item): item for item in found["items"]}
        self.listed.set()
        self._changed()
        return str(found["metadata"]["resourceVersion"])

    def _apply(self, event: Json) -> None:
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._objects[_key(event["object"])] = event["object"]
            case "DELETED":
                self._objects.pop(_key(event["object"]), None)
            case _:  # a bookmark moves the version alone
                return
        self._changed()


def _key(item: Json) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
