"""A router that requires keys, in front of one stub worker, and requests to it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker


@asynccontextmanager
async def guarded(
    stub: StubWorker, home: Path, keys: PlantedKeys, **settings: Any
) -> AsyncGenerator[RunningRouter, None]:
    async with running_router([stub], home, keys=keys.file, **settings) as router:
        yield router


async def status_of(
    router: RunningRouter, method: str, path: str, headers: dict[str, str] | None = None, **options: Any
) -> int:
    async with router.http.request(method, router.url + path, headers=headers, **options) as response:
        return response.status


async def json_of(router: RunningRouter, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    async with router.http.get(router.url + path, headers=headers) as response:
        return response.status, await response.json()


def routes_of(app: Any) -> list[Route]:
    """Every route of the application inside the edge."""
    while not isinstance(app, Starlette):
        app = getattr(app, "_app", None) or app.app
    return [route for route in app.routes if isinstance(route, Route)]
