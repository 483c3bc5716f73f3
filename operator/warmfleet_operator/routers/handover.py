"""Sends the replicas that are about to go to all routers, so that others compute what only those hold."""

import time
from collections import Counter
from collections.abc import Sequence

import structlog

from warmfleet_contracts.cache.handover import (
    ANSWER_SECONDS,
    HANDOVER_PATH,
    MAX_ANSWER_BYTES,
    decode_handover_answer,
    encode_handover,
    shared_out,
)
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.routers.client import RouterClient, RouterRequest
from warmfleet_operator.routers.poller import RouterPoller

log = structlog.get_logger("warmfleet.operator")


class RouterHandover:
    """Gives each ready router a share of the prefixes.

    await handover.hand_over("default/chat", ["uid"], seconds=5, payback_seconds=600)
    """

    def __init__(self, *, routers: RouterPoller, client: RouterClient, metrics: OperatorMetrics) -> None:
        """`routers` knows the addresses of ready routers."""
        self._routers = routers
        self._client = client
        self._metrics = metrics

    async def hand_over(
        self, deployment: str, victims: Sequence[str], *, seconds: float, payback_seconds: float
    ) -> None:
        """Return when all routers are done, or do not answer. Does not raise.

        One of an earlier release answers 404; what only it knows is lost with the victims.
        """
        begun = time.monotonic()
        addresses = self._routers.addresses
        requests = shared_out(victims, len(addresses), seconds=seconds, payback_seconds=payback_seconds)
        bodies = dict(zip(sorted(addresses), map(encode_handover, requests), strict=True))
        request = RouterRequest(
            HANDOVER_PATH, decode_handover_answer, MAX_ANSWER_BYTES, seconds + ANSWER_SECONDS
        )
        try:
            answers = await self._client.ask(addresses, request, bodies)
        except WarmfleetError as error:
            log.warning("nothing handed over", deployment=deployment, reason=str(error))
            return
        results = [answer for _, answer in answers.by_router.values()]
        moved = sum(answer.moved_prefixes for answer in results)
        skipped: Counter[str] = Counter()
        for answer in results:
            skipped.update(answer.skipped)
        took = time.monotonic() - begun
        self._metrics.handover_seconds.observe(took)
        log.info(
            "prefixes of the victims handed over",
            deployment=deployment,
            victims=list(victims),
            prefixes=moved,
            computed_tokens=sum(answer.computed_tokens for answer in results),
            skipped=dict(skipped),
            seconds=round(took, 3),
            problem=answers.problem,
        )
