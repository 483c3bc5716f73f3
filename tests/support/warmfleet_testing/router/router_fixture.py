"""A router in this process's event loop, behind real HTTP on loopback, in front of stub workers."""

# ruff: noqa: ASYNC110 - what is waited for happens in other threads and processes

import asyncio
import io
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from starlette.types import ASGIApp

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_router.app import Router, build_router
from warmfleet_router.discovery.base import Discovery, Endpoint
from warmfleet_router.settings import RouterSettings
from warmfleet_runtime.http.listener import bind
from warmfleet_runtime.http.server import Server
from warmfleet_testing.router.stub_worker import StubWorker

SALT_KEY = b"salt-key-of-tests-0123456789abcd"
WAIT_SECONDS: Final = 30.0
"""For what takes milliseconds on an idle machine."""


@dataclass(frozen=True)
class WorkerAddress:
    """A worker process, which may not run yet, in place of a stub."""

    uid: str
    url: str
    token: str = ""


@dataclass
class RunningRouter:
    router: Router
    url: str
    http: aiohttp.ClientSession

    async def ask(
        self,
        prompt: str | list[int],
        *,
        stream: bool = False,
        headers: dict[str, str] | None = None,
        **fields: object,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one completion; a cut-off body raises."""
        sent = {"content-type": "application/json", **(headers or {})}
        body = {"model": "stub", "prompt": prompt, "stream": stream, **fields}
        data = io.BytesIO(json.dumps(body).encode())
        async with self.http.post(f"{self.url}/v1/completions", data=data, headers=sent) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, await response.read()

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()

    async def until(self, found: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
        """Wait for something that happens in the router or in a stub."""
        async with asyncio.timeout(seconds):
            while not found():
                await asyncio.sleep(0.005)

    async def until_known(self, count: int) -> None:
        """Wait until so many workers are ready, their blocks and their tokenizers known."""
        await self.until(lambda: _all_known(self.router, count))

    async def until_idle(self) -> None:
        """Wait until no lease is open."""
        async with asyncio.timeout(WAIT_SECONDS):
            while any(
                self.router.routing.leases.dispatches.open_count(view.endpoint.uid)
                for view in self.router.workers.fleet.workers()
            ):
                await asyncio.sleep(0.005)

    async def until_settled(self, stubs: Sequence[StubWorker]) -> None:
        """Wait until nothing runs and the index holds what the workers hold."""
        await self.until_idle()
        index = self.router.workers.fleet.index
        await self.until(
            lambda: all(
                index.resident_blocks(stub.uid) == len(stub.cache.resident) and not stub.running
                for stub in stubs
            )
        )


@asynccontextmanager
async def running_router(
    stubs: Sequence[StubWorker | WorkerAddress],
    home: Path,
    *,
    policy: str = "LowestCost",
    wait_ready: bool = True,
    shared_cache: str = "",
    now: Callable[[], float] = time.monotonic,
    discovery: Discovery | None = None,
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **settings: Any,
) -> AsyncGenerator[RunningRouter, None]:
    """A started router with further `settings`; `wait_ready`: all stubs ready, precise, tokenizers known.

    `now` is the clock of its rates and waits; `discovery` finds workers in place of `stubs`;
    `wrap` is put around the application.
    """
    endpoints = [
        Endpoint(
            uid=stub.uid,
            name=stub.uid,
            url=stub.url,
            token=stub.token.encode(),
            shared_cache=shared_cache,
        )
        for stub in stubs
    ]
    router = build_router(
        RouterSettings(endpoints=tuple(endpoints), salt_key=SALT_KEY, policy=policy, home=home, **settings),
        discovery,
        now=now,
        contract_versions=contract_versions,
    )
    listener = bind("127.0.0.1", 0)
    server = Server(wrap(router.api.app), shutdown_seconds=1, max_connections=router.settings.max_connections)
    async with router.running(), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        running = RunningRouter(router, f"http://127.0.0.1:{listener.getsockname()[1]}", http)
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            if wait_ready:
                await running.until_known(len(stubs))
            yield running
        finally:
            server.should_exit = True
            await serving


def _all_known(router: Router, expected: int) -> bool:
    known = [
        view
        for view in router.workers.fleet.workers()
        if view.ready
        and view.precise
        and view.hello is not None
        and router.workers.encoders.known(view.hello.tokenizer_digest) is not None
    ]
    return len(known) >= expected
