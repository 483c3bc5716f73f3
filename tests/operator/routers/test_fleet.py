"""What a router's answer about its fleet may hold."""

import msgspec
import pytest

from warmfleet_contracts.cache.fleet_totals import MAX_REPLICAS
from warmfleet_contracts.cache.kv_events import MAX_COUNT
from warmfleet_operator.routers.fleet import FleetAnswer, merged_view
from warmfleet_operator.routers.poller import FLEET
from warmfleet_operator.status.status import status_of
from warmfleet_testing.resources.observations import serving

WORKER = {"uid": "uid-m-1", "ready": True, "block_size_tokens": 16, "load": {"total_blocks": 100}}


def answer(**fields: object) -> FleetAnswer:
    return FLEET.decode(msgspec.json.encode({"endpoints": [WORKER], **fields}))


def test_fields_of_other_releases_are_ignored_and_absent_ones_are_zero() -> None:
    view = merged_view([answer(policy="LowestCost")], routers=1)

    assert view.workers["uid-m-1"].total_blocks == 100
    assert view.workers["uid-m-1"].waiting == 0


def test_one_router_that_knows_whether_a_worker_is_exact_is_enough() -> None:
    exact = WORKER | {"exact": False}
    for answers in ([answer(), answer(endpoints=[exact])], [answer(endpoints=[exact]), answer()]):
        assert merged_view(answers, routers=2).workers["uid-m-1"].exact is False
    assert merged_view([answer()], routers=1).workers["uid-m-1"].exact is None


def test_requests_that_wait_for_a_worker_and_for_a_model_to_wake_add_up_over_routers() -> None:
    held, waking = {"m": {"requests": 2}}, {"m": {"requests": 5}, "n": {"requests": 1}}
    view = merged_view([answer(held=held, waking=waking), answer(waking=waking)], routers=2)

    assert view.held == {"m": 12, "n": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoints": [WORKER | {"load": {"waiting_sequences": -5}}]},
        {"endpoints": [WORKER | {"load": {"total_blocks": MAX_COUNT + 1}}]},
        {"endpoints": [{"uid": "u"}] * (MAX_REPLICAS + 1)},
        {"held": {"m": {"requests": -7}}},
        {"waking": {"m": {"requests": -7}}},
        {"tokens": {"m": {"prompt": -1}}},
    ],
    ids=[
        "negative",
        "too much",
        "too many workers",
        "negative requests",
        "negative held ones",
        "negative tokens",
    ],
)
def test_an_answer_that_no_router_gives_is_refused_as_a_whole(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        answer(**fields)


def test_any_numbers_of_workers_fit_into_a_status() -> None:
    load = {"total_blocks": MAX_COUNT, "pinned_blocks": MAX_COUNT, "waiting_sequences": MAX_COUNT}
    worker = WORKER | {"block_size_tokens": MAX_COUNT, "load": load}
    view = merged_view([answer(endpoints=[worker], held={"m": {"requests": MAX_COUNT}})], routers=1)

    status = status_of(serving(fleet=view))

    assert status["kvCache"] == {"capacityTokens": 2**63 - 1, "usedPercent": 100}
    assert status["waitingRequests"] == 2**31 - 1
