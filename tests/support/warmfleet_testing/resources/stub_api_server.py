"""An API server without a cluster: it answers discovery, lists and watches, and keeps all requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from warmfleet_operator.cluster import Connection
from warmfleet_operator.objects.kinds import WATCHED, Kind

FIRST_VERSION = 1000


class StubApiServer:
    """Lists hold `objects`; `send` adds an event to the watches of a kind.

    `failures` is the number of following requests that are answered with status 500.
    """

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[Kind, list[Mapping[str, Any]]] = {kind: [] for kind in WATCHED}
        self.requests: list[web.Request] = []
        self.failures = 0
        self._events: dict[Kind, list[Mapping[str, Any]]] = {kind: [] for kind in WATCHED}
        self._changed = asyncio.Condition()

    def connection(self) -> Connection:
        return Connection(self.url, None, None, None, None)

    def watches(self, kind: Kind) -> list[web.Request]:
        """The watch requests of a kind so far."""
        return [
            request
            for request in self.requests
            if request.path == kind.path(None) and request.query.get("watch") == "true"
        ]

    async def send(self, kind: Kind, event: str, body: Mapping[str, Any]) -> None:
        """An event of a watch, once: `ADDED`, `MODIFIED`, `DELETED` or `ERROR`."""
        async with self._changed:
            self._events[kind].append({"type": event, "object": body})
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.failures:
            self.failures -= 1
            return web.json_response({"message": "a stub fails"}, status=500)
        for kind in WATCHED:
            if request.path == kind.path(None):
                return await self._watch(kind, request) if "watch" in request.query else self._list(kind)
        found = _discovery().get(request.path)
        return web.json_response(found or {"code": 404}, status=200 if found else 404)

    def _list(self, kind: Kind) -> web.Response:
        metadata = {"resourceVersion": str(FIRST_VERSION)}
        return web.json_response({"metadata": metadata, "items": self.objects[kind]})

    async def _watch(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._events[kind])
                event = self._events[kind].pop(0)
            await response.write(json.dumps(event).encode() + b"\n")


def _discovery() -> dict[str, dict[str, Any]]:
    """What `/api`, `/apis` and the path of each group and version are answered with."""
    groups = sorted({kind.group for kind in WATCHED if kind.group})
    found: dict[str, dict[str, Any]] = {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [_group(group) for group in groups]},
    }
    for kind in WATCHED:
        path = kind.path(None).rpartition("/")[0]
        resource = {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "kind": kind.name,
            "namespaced": True,
            "verbs": ["list", "watch", "patch"],
        }
        found.setdefault(path, {"resources": []})["resources"].append(resource)
    namespaces = {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False}
    found["/api/v1"]["resources"].append(namespaces | {"verbs": ["list", "watch"]})
    return found


def _group(name: str) -> dict[str, Any]:
    versions = [{"version": kind.version} for kind in WATCHED if kind.group == name]
    return {"name": name, "versions": versions[:1], "preferredVersion": versions[0]}


@asynccontextmanager
async def running_stub_api_server() -> AsyncIterator[StubApiServer]:
    """The stub on a free port of this machine."""
    stub = StubApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stub.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()
