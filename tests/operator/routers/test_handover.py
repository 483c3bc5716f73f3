"""What routers get about replicas that are about to go."""

import asyncio
from typing import Any

import pytest

from warmfleet_contracts.cache.handover import (
    HANDOVER_PATH,
    HandoverAnswer,
    HandoverRequest,
    decode_handover,
    decode_handover_answer,
    encode_handover,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.routers.client import RouterClient
from warmfleet_operator.routers.handover import RouterHandover
from warmfleet_testing.resources.metrics_page import metric
from warmfleet_testing.router.stub_router import StubRouter, stub_router


class _Keys:
    async def ensure_operator_token(self) -> str:
        return "secret"


class _Routers:
    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses


class _HandingRouter(StubRouter):
    """A router that hands over; `answered` is its answer."""

    def __init__(self, status: int = 200, answered: bytes = b"{}") -> None:
        super().__init__()
        self._answered = status, answered

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        self.tokens.add(authorization.removeprefix("Bearer "))
        return self._answered if path == HANDOVER_PATH else (404, b"")


def hand_over(router: StubRouter, addresses: dict[str, str], seconds: float = 2.0) -> float:
    """Hand `v` over; returns how many handovers the metrics counted."""
    metrics = OperatorMetrics()

    async def run() -> None:
        keys: Any = _Keys()
        routers: Any = _Routers(addresses)
        client = RouterClient(key_secrets=keys, router_port=router.port)
        handover = RouterHandover(routers=routers, client=client, metrics=metrics)
        try:
            await handover.hand_over("ns/m", ["v"], seconds=seconds, payback_seconds=60.0)
        finally:
            await client.close()

    asyncio.run(run())
    return metric(metrics, "warmfleet_operator_handover_seconds_count")


def test_each_router_gets_a_share_of_its_own_as_the_operator() -> None:
    with stub_router(_HandingRouter()) as router:
        counted = hand_over(router, {"b": "127.0.0.1", "a": "127.0.0.1", "c": "127.0.0.1"})

    requests = [decode_handover(body) for _, body in router.posted]
    assert {path for path, _ in router.posted} == {HANDOVER_PATH}
    assert router.tokens == {"secret"}
    assert sorted(request.share for request in requests) == [0, 1, 2]
    assert {(one.victims, one.seconds, one.payback_seconds, one.shares) for one in requests} == {
        (("v",), 2.0, 60.0, 3)
    }
    assert counted == 1


@pytest.mark.parametrize(
    ("status", "answered"), [(404, b""), (429, b""), (200, b"no JSON"), (200, b'{"moved_prefixes": -1}')]
)
def test_a_router_that_does_not_hand_over_stops_no_shrink(status: int, answered: bytes) -> None:
    with stub_router(_HandingRouter(status, answered)) as router:
        assert hand_over(router, {"a": "127.0.0.1", "gone": "127.0.0.9"}) == 1


def test_without_routers_no_answer_is_waited_for() -> None:
    with stub_router(_HandingRouter()) as router:
        assert hand_over(router, {}) == 1
    assert not router.posted


def test_a_request_and_an_answer_keep_their_values_and_unknown_fields_are_ignored() -> None:
    request = HandoverRequest(victims=("a", "b"), seconds=3.5, payback_seconds=7.0, share=1, shares=4)
    assert decode_handover(encode_handover(request)) == request
    assert decode_handover(b'{"victims": ["a"], "seconds": 1, "later": {}}') == HandoverRequest(
        victims=("a",), seconds=1.0
    )
    answer = HandoverAnswer(moved_prefixes=2, skipped={"held": 1}, seconds=0.5)
    assert decode_handover_answer(b'{"moved_prefixes":2,"skipped":{"held":1},"seconds":0.5,"x":0}') == answer


@pytest.mark.parametrize("content", [b"", b"[]", b'{"skipped": 3}', b'{"seconds": -1}', b"\xff"])
def test_an_answer_that_is_none_is_a_contract_error(content: bytes) -> None:
    with pytest.raises(ContractError):
        decode_handover_answer(content)
