"""Any numbers that workers report: choices are made by costs that are numbers, alike in every router.

Reports are written as a worker could and read as the router reads them, so they hold what decoding accepts;
what it refuses is in `test_impossible_values`.
"""

import itertools
import math
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_contracts.cache.kv_events import Frame, LoadReport, StepTimeFit, decode_message
from warmfleet_router.routing.capacity import CapacityLimits, Need
from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decision_ring import DecisionRing
from warmfleet_router.routing.decisions import RequestRecord
from warmfleet_router.routing.policies import POLICIES, Ranking
from warmfleet_router.routing.slow_workers import SlowWorkerDetector
from warmfleet_testing.router.picker_fleet import PickerFleet, chain, prompts
from warmfleet_testing.wires.counts import counts_of

UIDS: Final = ("a", "b", "c")
TOKENS: Final = list(range(100))
COUNTS: Final = counts_of(LoadReport)
SECONDS: Final = [
    name for name in StepTimeFit.__struct_fields__ if type(getattr(StepTimeFit(), name)) is float
]
NUMBERS: Final = st.sampled_from([0, 1, -1, 2**63, 2**64 - 1, -(2**63)]) | st.integers(-(2**63), 2**64 - 1)
POSSIBLE: Final = st.sampled_from([0, 1, 2, 64, 2**53]) | st.integers(0, 2**53)
TIMES: Final = st.sampled_from([0.0, -0.0, 5e-324, 1e-12, 0.001, -0.001, 3600.0, 1e308]) | st.floats()
REPORTS: Final = st.fixed_dictionaries(
    {
        "step_time": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(SECONDS, TIMES) | dict.fromkeys(("knee_tokens", "samples"), NUMBERS)
        )
    },
    optional={
        **dict.fromkeys(COUNTS, POSSIBLE),
        "admitted_dispatches": st.dictionaries(st.sampled_from(["router", "another"]), NUMBERS),
        "open_dispatches": st.dictionaries(st.sampled_from(["router", "another"]), POSSIBLE),
        "plain_answers": st.dictionaries(
            st.just("router"), st.lists(st.tuples(st.integers(0, 4), TIMES, TIMES, POSSIBLE), max_size=4)
        ),
    },
)


def as_read(report: dict[str, Any]) -> LoadReport:
    """What the router has of a report."""
    frame = {"type": "frame", "v": CONTRACT_VERSION, "epoch": "e", "seq": 1, "load": report}
    message = decode_message(msgspec.msgpack.encode(frame))
    assert isinstance(message, Frame)
    assert message.load is not None
    return message.load


def hostile_fleet(policy: str, reports: list[dict[str, Any]]) -> PickerFleet:
    """One honest worker in front of those that report `reports`, each with an open dispatch."""
    fleet = PickerFleet("honest", *UIDS, policy=policy)
    fleet.store("a", chain(TOKENS)[:3])
    for uid, report in zip(UIDS, reports, strict=True):
        fleet.leases.lease(fleet.pick(prompts(TOKENS)).charge).open()
        fleet.load[uid] = as_read(report)
        fleet.leases.frame_arrived(uid, Frame(epoch="e", seq=1, load=fleet.load[uid]))
    return fleet


def as_ranked(ranking: Ranking) -> list[tuple[str, float]]:
    return [
        (candidate.uid, score) for candidate, score in zip(ranking.candidates, ranking.scores, strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=200)
@given(reports=st.lists(REPORTS, min_size=len(UIDS), max_size=len(UIDS)))
def test_workers_are_ranked_by_numbers_and_alike_in_every_order_of_discovery(
    policy: str, reports: list[dict[str, Any]]
) -> None:
    fleet = hostile_fleet(policy, reports)

    rankings = []
    for order in itertools.permutations(fleet.workers):
        ranked = fleet.picker.rank(fleet.picker.snapshot(order), prompts(TOKENS))
        assert ranked is not None
        rankings.append(as_ranked(ranked.ranking))
        for candidate in ranked.ranking.candidates:
            assert all(map(math.isfinite, msgspec.structs.astuple(candidate.cost))), candidate
            assert min(msgspec.structs.astuple(candidate.cost)) >= 0

    assert all(ranking == rankings[0] for ranking in rankings)
    assert {uid for uid, _ in rankings[0]} == {"honest", *UIDS}


@settings(max_examples=200)
@given(reports=st.lists(REPORTS, min_size=len(UIDS), max_size=len(UIDS)))
def test_capacity_and_records_take_any_report(reports: list[dict[str, Any]]) -> None:
    fleet, detector, ring = hostile_fleet("LowestCost", reports), SlowWorkerDetector(), DecisionRing(8)
    snapshot, need = fleet.picker.snapshot(fleet.workers), Need(2, 7, may_use_headroom=False)

    snapshot.shortages(need, CapacityLimits())
    assert snapshot.nearest(need) in snapshot.ready
    ranked = fleet.picker.rank(snapshot, prompts(TOKENS))
    assert ranked is not None
    for number, candidate in enumerate(ranked.ranking.candidates):
        picked = ranked.pick(candidate)
        reasons = [detector.record_report(candidate, ranked.ranking.candidates) for _ in range(8)]
        assert "inf" not in reasons[-1]
        snapshot.is_within_window(candidate.uid, picked.charge.uncached_tokens, CapacityLimits())
        request = RequestRecord(
            id=f"d{number}",
            request_id="r",
            path="/",
            model="m",
            policy="p",
            prompt_tokens=1,
            prompts=1,
            decided_at=0.0,
        )
        recorder = DecisionRecorder(request, since=0.0, now=lambda: 1.0)
        recorder.dispatched(picked, dispatch=1, held_seconds=None)
        ring.add(recorder)
        ring.ended(recorder)
        kept = ring.find(f"d{number}")
        assert kept == recorder.decision
        msgspec.json.encode(kept.as_json())
