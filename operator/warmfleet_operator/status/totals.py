"""Reads every router's totals over kept connections, and keeps each router's last answer."""

import asyncio
import time
from typing import Final

import httpx
import structlog

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, MAX_TOTALS_BYTES, decode_totals
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.keys import KeySecrets
from warmfleet_operator.scaling.signals import Reading
from warmfleet_operator.status.bounded_answer import bounded_answer, router_url
from warmfleet_operator.status.routers import RouterPoller

ANSWER_SECONDS: Final = 1.5
RECENT_SECONDS: Final = 10.0
"""An answer counts for this long, so that one lost answer changes nothing."""
KEPT_SECONDS: Final = 60.0
"""A connection without a request is kept for so long."""

log = structlog.get_logger("warmfleet.operator")


class TotalsReader:
    """The last totals of each ready router.

    await reader.read()      # every few seconds
    reader.readings()
    await reader.close()
    """

    def __init__(self, *, routers: RouterPoller, key_secrets: KeySecrets, router_port: int) -> None:
        """`routers` knows the addresses of ready routers."""
        self._routers = routers
        self._key_secrets = key_secrets
        self._port = router_port
        # Plain HTTP inside the cluster, so there is no certificate to verify.
        self._client = httpx.AsyncClient(
            timeout=ANSWER_SECONDS,
            limits=httpx.Limits(keepalive_expiry=KEPT_SECONDS),
            trust_env=False,
            verify=False,  # noqa: S501 - as above
        )
        self._answers: dict[str, tuple[float, Reading]] = {}
        """By the router's pod: when it was received, and the answer."""
        self._problem = ""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def routers(self) -> int:
        """Ready routers, those that do not answer included."""
        return len(self._routers.addresses)

    async def read(self) -> None:
        """Ask all routers once. Does not raise."""
        addresses = self._routers.addresses
        for uid in self._answers.keys() - addresses.keys():
            del self._answers[uid]
        try:
            token = await self._key_secrets.ensure_operator_token()
        except WarmfleetError as error:
            problems = [str(error)]
        else:
            reads = (self._read_one(uid, ip, token) for uid, ip in addresses.items())
            problems = [problem for problem in await asyncio.gather(*reads) if problem]
        problem = next(iter(problems), "")
        if problem and problem != self._problem:
            log.warning("a router does not report totals", reason=problem)
        self._problem = problem

    def readings(self) -> tuple[Reading, ...]:
        """The last answer of each router that answered within `RECENT_SECONDS`."""
        now = time.monotonic()
        return tuple(
            Reading(reading.totals, now - at)
            for at, reading in self._answers.values()
            if now - at <= RECENT_SECONDS
        )

    async def _read_one(self, uid: str, ip: str, token: str) -> str:
        url = router_url(ip, self._port, FLEET_TOTALS_PATH)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                body = await bounded_answer(self._client, url, token, MAX_TOTALS_BYTES)
            self._answers[uid] = (time.monotonic(), Reading(decode_totals(body)))
        except (httpx.HTTPError, TimeoutError, ValueError, WarmfleetError) as error:
            return f"router at {ip}: {str(error) or type(error).__name__}"[:256]
        return ""
