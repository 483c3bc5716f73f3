"""The reads of routers' totals: kept connections, bounds, and what a wrong answer changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from warmfleet_contracts.cache.fleet_totals import MAX_TOTALS_BYTES
from warmfleet_operator.errors import KeysMissingError
from warmfleet_operator.routers import totals as totals_room
from warmfleet_operator.routers.client import RouterClient
from warmfleet_operator.routers.totals import TotalsReader
from warmfleet_testing.resources.scaling_signals import totals
from warmfleet_testing.router.stub_router import StubRouter, stub_router


class Keys:
    """The operator's token, or why there is none."""

    problem = ""

    async def ensure_operator_token(self) -> str:
        if self.problem:
            raise KeysMissingError(self.problem)
        return "secret"


def reading(test: Callable[[StubRouter, TotalsReader, Any], Awaitable[None]]) -> None:
    """Run `test` with a router at the address of pod `uid-0`."""

    async def run(router: StubRouter) -> None:
        routers = SimpleNamespace(addresses={"uid-0": "127.0.0.1"}, ready_routers=1)
        client = RouterClient(
            key_secrets=Keys(),  # type: ignore[arg-type] # a part of it
            router_port=router.port,
        )
        reader = TotalsReader(
            routers=routers,  # type: ignore[arg-type] # a part of it
            client=client,
        )
        try:
            await test(router, reader, routers)
        finally:
            await client.close()

    with stub_router() as router:
        asyncio.run(run(router))


def test_reads_go_over_one_kept_connection_with_the_operators_token() -> None:
    async def test(router: StubRouter, reader: TotalsReader, _: Any) -> None:
        router.totals = totals("a", queued_requests=3)
        for _ in range(5):
            await reader.read()

        (answer,) = reader.readings()
        assert answer.totals == router.totals
        assert reader.routers == 1
        assert router.connections == 1
        assert router.tokens == {"secret"}

    reading(test)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b"{}"),
        (200, b"not json"),
        (200, b'{"router": "a", "models": {"m": {"queued_tokens": -1}}}'),
        (200, b'{"router": "a", "uptime_seconds": NaN}'),
        (200, b" " * (MAX_TOTALS_BYTES + 1)),
    ],
    ids=["refused", "no JSON", "negative", "no number", "too long"],
)
def test_a_wrong_answer_leaves_the_last_one_until_that_is_old(
    status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(router: StubRouter, reader: TotalsReader, _: Any) -> None:
        router.totals = totals("a", queued_requests=3)
        await reader.read()
        router.status, router.body = status, body
        await reader.read()

        assert [item.totals for item in reader.readings()] == [router.totals]
        now = time.monotonic()
        later = SimpleNamespace(monotonic=lambda: now + totals_room.RECENT_SECONDS + 1)
        monkeypatch.setattr(totals_room, "time", later)
        assert reader.readings() == ()
        assert reader.routers == 1, "it is still one of the routers"

    reading(test)


def test_an_answer_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_router: StubRouter, reader: TotalsReader, _: Any) -> None:
        await reader.read()
        now = time.monotonic()
        monkeypatch.setattr(totals_room, "time", SimpleNamespace(monotonic=lambda: now + 3.0))
        (answer,) = reader.readings()
        assert 3.0 <= answer.age_seconds < 5.0

    reading(test)


def test_a_router_that_left_is_forgotten_at_the_next_read() -> None:
    async def test(_router: StubRouter, reader: TotalsReader, routers: Any) -> None:
        await reader.read()
        routers.addresses, routers.ready_routers = {}, 0
        await reader.read()
        assert (reader.readings(), reader.routers) == ((), 0)

    reading(test)


def test_a_router_that_refuses_connections_does_not_keep_the_others_from_answering() -> None:
    async def test(_router: StubRouter, reader: TotalsReader, routers: Any) -> None:
        routers.addresses, routers.ready_routers = {"uid-0": "127.0.0.1", "uid-1": "127.0.0.9"}, 2
        await reader.read()
        assert (len(reader.readings()), reader.routers) == (1, 2)

    reading(test)


def test_without_a_token_nothing_is_asked() -> None:
    async def test(router: StubRouter, reader: TotalsReader, _: Any) -> None:
        Keys.problem = "the Secret is missing"
        try:
            await reader.read()
        finally:
            Keys.problem = ""
        assert (reader.readings(), router.connections) == ((), 0)

    reading(test)
