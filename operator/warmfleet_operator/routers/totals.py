"""Reads every router's totals, and keeps each router's last answer."""

import time
from typing import Final

import structlog

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, MAX_TOTALS_BYTES, decode_totals
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.routers.client import RouterClient, RouterRequest
from warmfleet_operator.routers.poller import RouterPoller
from warmfleet_operator.scaling.signals import Reading

ANSWER_SECONDS: Final = 1.5
RECENT_SECONDS: Final = 10.0
"""An answer counts for this long, so that one lost answer changes nothing."""
TOTALS: Final = RouterRequest(FLEET_TOTALS_PATH, decode_totals, MAX_TOTALS_BYTES, ANSWER_SECONDS)

log = structlog.get_logger("warmfleet.operator")


class TotalsReader:
    """The last totals of each ready router.

    await reader.read()      # every few seconds
    reader.readings()
    """

    def __init__(self, *, routers: RouterPoller, client: RouterClient) -> None:
        """`routers` knows the addresses of ready routers."""
        self._routers = routers
        self._client = client
        self._answers: dict[str, tuple[float, Reading]] = {}
        """By the router's pod: when it was received, and the answer."""
        self._problem = ""

    @property
    def routers(self) -> int:
        """Ready routers, those included that do not answer or are not asked."""
        return self._routers.ready_routers

    async def read(self) -> None:
        """Ask all routers once. Does not raise."""
        addresses = self._routers.addresses
        for uid in self._answers.keys() - addresses.keys():
            del self._answers[uid]
        try:
            answers = await self._client.ask(addresses, TOTALS)
        except WarmfleetError as error:
            problem = str(error)
        else:
            problem = answers.problem
            self._answers |= {uid: (at, Reading(totals)) for uid, (at, totals) in answers.by_router.items()}
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
