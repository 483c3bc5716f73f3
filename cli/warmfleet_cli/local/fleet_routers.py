"""The routers of a local fleet, as its supervisor asks them: totals, and handing over a worker's prefixes."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import httpx

from warmfleet_contracts.cache.fleet_totals import (
    FLEET_TOTALS_PATH,
    MAX_TOTALS_BYTES,
    FleetTotals,
    decode_totals,
)
from warmfleet_contracts.cache.handover import (
    ANSWER_SECONDS,
    HANDOVER_PATH,
    MAX_ANSWER_BYTES,
    HandoverRequest,
    decode_handover_answer,
    encode_handover,
    shared_out,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_operator.scaling.signals import Reading
from warmfleet_runtime.answers import IDENTITY, AnswerError, read_content

TOTALS_SECONDS: Final = 1.5
RECENT_SECONDS: Final = 10.0
"""An answer counts for this long, so that one lost answer changes nothing."""


class FleetRouters:
    """Asks all routers at once. Nothing raises: a router that does not answer contributes nothing.

    async with FleetRouters(urls, token) as routers:
        readings = await routers.readings()
        moved = await routers.hand_over("uid", seconds=4.0, payback_seconds=600.0)
    """

    def __init__(self, urls: Sequence[str], token: str) -> None:
        """`token`: of the operator, where routers require keys; else empty."""
        self._urls = urls
        self._answers: dict[str, tuple[float, FleetTotals]] = {}
        # trust_env off: a proxy meant for the internet must not see loopback requests.
        self._client = httpx.AsyncClient(
            headers={**IDENTITY, **({"authorization": f"Bearer {token}"} if token else {})}, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def readings(self) -> tuple[Reading, ...]:
        """The last totals of each router that gave some within `RECENT_SECONDS`."""
        await asyncio.gather(*(self._read(url) for url in self._urls))
        now = time.monotonic()
        return tuple(
            Reading(totals, now - at) for at, totals in self._answers.values() if now - at <= RECENT_SECONDS
        )

    async def hand_over(self, uid: str, *, seconds: float, payback_seconds: float) -> int:
        """Have others compute what only this worker holds; returns how many prefixes they have now."""
        requests = shared_out((uid,), len(self._urls), seconds=seconds, payback_seconds=payback_seconds)
        return sum(await asyncio.gather(*map(self._hand_over, self._urls, requests)))

    async def _read(self, url: str) -> None:
        # The last answer counts until it is too old, and from then on the signals are incomplete.
        with contextlib.suppress(httpx.HTTPError, ContractError, AnswerError, TimeoutError):
            content = await self._body("GET", url + FLEET_TOTALS_PATH, b"", TOTALS_SECONDS, MAX_TOTALS_BYTES)
            self._answers[url] = (time.monotonic(), decode_totals(content))

    async def _hand_over(self, url: str, request: HandoverRequest) -> int:
        seconds = request.seconds + ANSWER_SECONDS
        with contextlib.suppress(httpx.HTTPError, ContractError, AnswerError, TimeoutError):
            body = encode_handover(request)
            content = await self._body("POST", url + HANDOVER_PATH, body, seconds, MAX_ANSWER_BYTES)
            return decode_handover_answer(content).moved_prefixes
        return 0

    async def _body(self, method: str, url: str, body: bytes, seconds: float, most_bytes: int) -> bytes:
        async with (
            asyncio.timeout(seconds),
            self._client.stream(method, url, content=body, timeout=seconds) as response,
        ):
            response.raise_for_status()
            return await read_content(response.headers, response.aiter_bytes(), most_bytes)
