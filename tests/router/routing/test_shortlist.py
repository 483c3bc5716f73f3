"""A shortlist against a ranking of all workers."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.admission.placement import Patience, place
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.routing.capacity import CapacityLimits
from warmfleet_router.routing.known_loads import KnownLoads
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import NOTHING_PLANNED, RankedWorkers
from warmfleet_router.routing.policies import LOAD_POLICIES, equality_limit_ms
from warmfleet_router.routing.shortlist import LISTED_WORKERS, shortlist
from warmfleet_testing.router.picker_fleet import PickerFleet, chain, prompts

DECISIONS = 10_000


def ranked_by_cost(costs: dict[str, float], weights: dict[str, int]) -> list[str]:
    """Oracle: equals of the cheapest by weight, then the others by cost."""
    limit_ms = equality_limit_ms(min(costs.values()))
    return sorted(
        costs, key=lambda uid: (costs[uid] > limit_ms, max(costs[uid], limit_ms), -weights[uid], uid)
    )


@settings(max_examples=200, deadline=None)
@given(
    workers=st.integers(1, 200),
    spread_ms=st.sampled_from([0.0, 3.0, 50.0, 1000.0]),
    looseness=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_what_is_certain_of_a_shortlist_is_the_beginning_of_the_ranking_of_all(
    workers: int, spread_ms: float, looseness: float, seed: int
) -> None:
    draw = random.Random(seed)
    costs = {f"w{number}": 10.0 + round(draw.random() * spread_ms, 1) for number in range(workers)}
    floors = {uid: cost_ms * (1 - looseness * draw.random()) for uid, cost_ms in costs.items()}
    weights = {uid: draw.getrandbits(64) for uid in costs}

    known = {uid for uid, cost_ms in costs.items() if floors[uid] == cost_ms and draw.random() < 0.8}

    ascending = sorted((floor_ms, uid, uid in known) for uid, floor_ms in floors.items())
    listed = shortlist(iter(ascending), costs.__getitem__, lambda uids: {uid: weights[uid] for uid in uids})

    everything = ranked_by_cost(costs, weights)
    certain = ranked_by_cost({uid: costs[uid] for uid in listed.uids}, weights)[: listed.certain]
    equals = sum(cost_ms <= equality_limit_ms(min(costs.values())) for cost_ms in costs.values())
    assert certain == everything[: listed.certain]
    assert listed.certain >= min(equals, LISTED_WORKERS)
    assert len(set(listed.uids)) == len(listed.uids) == min(workers, LISTED_WORKERS)
    assert listed.unlisted_equals == max(equals - LISTED_WORKERS, 0)


class Replay:
    """A fleet in use: conversations go on, workers report, store and forget, answers end."""

    def __init__(self, workers: int, seed: int, policy: str = "LowestCost") -> None:
        self.draw = random.Random(seed)
        self.now = 1000.0
        self.uids = [f"w{number}" for number in range(workers)]
        self.fleet = PickerFleet(*self.uids, policy=policy, now=lambda: self.now)
        self.leases: list[Lease] = []
        self.prompts = [
            [group, *range(64 * group, 64 * group + 95), *[self.draw.randrange(1000) for _ in range(160)]]
            for group in range(8)
            for _ in range(12)
        ]

    def report(self, uid: str) -> None:
        fleet, draw = self.fleet, self.draw
        is_full, running = draw.random() < 0.3, draw.randrange(60)
        load = fleet.report(
            draw.choice([0.0002, 0.0002, 0.0003, 0.001]),
            running_sequences=64 if is_full else running,
            waiting_sequences=draw.choice([0, 0, 3]) if is_full else 0,
            queued_uncached_tokens=draw.choice([0, 0, 40, 2000]),
            pinned_blocks=draw.choice([0, 500, 9990]),
        )
        load.admitted_dispatches["router"] = fleet.leases.dispatches.count - draw.randrange(3)
        fleet.load[uid] = load
        fleet.leases.frame_arrived(uid, Frame(epoch="e", seq=0, load=load))

    def step(self, request: int) -> tuple[RankedWorkers, RankedWorkers, bool]:
        """What is ranked for the next request: shortlisted, and all; and whether it is placed alike."""
        fleet, draw = self.fleet, self.draw
        self.now += draw.random() / 10
        for uid in draw.sample(self.uids, 2):
            self.report(uid)
        is_new = draw.random() < 0.2
        tokens = [request, *range(200)] if is_new else draw.choice(self.prompts)
        asked = prompts(tokens[: draw.randrange(100, len(tokens) + 1)], choices=draw.choice([1, 1, 2]))
        snapshot = fleet.picker.snapshot(fleet.workers)
        left_out = dict.fromkeys(draw.sample(self.uids, draw.choice([0, 0, 2])), "tried before")
        planned = {uid: UnreportedLoad(500, 1, 20) for uid in draw.sample(self.uids, draw.choice([0, 0, 3]))}
        short, full = (
            fleet.picker.rank(
                snapshot,
                asked,
                left_out=left_out,
                planned=planned or NOTHING_PLANNED,
                shortlisted=shortlisted,
            )
            for shortlisted in (True, False)
        )
        assert short is not None
        assert full is not None
        placements = [
            place(
                ranked,
                snapshot.loads,
                CapacityLimits(),
                may_use_headroom=True,
                patience=Patience.of(AdmissionSettings()),
                may_bypass=lambda _: False,
            )
            for ranked in (short, full)
        ]
        picked = short.pick(short.ranking.candidates[0])
        self.leases.append(fleet.leases.lease(picked.charge).open())
        if draw.random() < 0.5:
            self.leases[-1].seated()
            self.leases[-1].first_byte()
            uid = picked.candidate.uid
            fleet.store(uid, [one for one in dict.fromkeys(chain(tokens)) if one not in fleet.held[uid]])
        while len(self.leases) > 100:
            self.leases.pop(0).close(ended_well=True)
        return short, full, placements[0] is None or _where(placements[0]) == _where(placements[1])


def _where(placement: object) -> tuple[object, ...]:
    picked = placement.picked  # type: ignore[attr-defined]
    return (
        picked.candidate if picked else None,
        placement.because,  # type: ignore[attr-defined]
        placement.plan_uid,  # type: ignore[attr-defined]
    )


def test_ten_thousand_requests_get_the_worker_that_a_ranking_of_all_gives_them() -> None:
    replay = Replay(workers=48, seed=1)

    different = misplaced = shortened = 0
    for request in range(DECISIONS):
        short, full, is_placed_alike = replay.step(request)
        shortened += short.ranking.unlisted > 0
        different += short.ranking.candidates[0] != full.ranking.candidates[0]
        misplaced += not is_placed_alike
        assert short.ranking.candidates[: short.certain] == full.ranking.candidates[: short.certain]
        assert short.ranking.reason == full.ranking.reason

    assert (different, misplaced) == (0, 0)
    assert shortened == DECISIONS


@pytest.mark.parametrize("policy", LOAD_POLICIES)
def test_a_policy_that_prices_no_worker_lists_the_first_of_all(policy: str) -> None:
    replay = Replay(workers=48, seed=3, policy=policy)

    for request in range(100):
        short, full, is_placed_alike = replay.step(request)
        assert is_placed_alike
        assert short.certain == len(short.ranking.candidates) == LISTED_WORKERS
        assert short.ranking.candidates == full.ranking.candidates[:LISTED_WORKERS]
        assert short.ranking.scores == full.ranking.scores[:LISTED_WORKERS]
        assert short.ranking.reason == full.ranking.reason
        assert short.ranking.unlisted == len(full.ranking.candidates) - LISTED_WORKERS


def test_the_loads_that_are_known_are_those_that_the_reports_and_dispatches_give() -> None:
    replay = Replay(workers=40, seed=2)

    for request in range(200):
        replay.step(request)
        leases = replay.fleet.leases
        fresh = KnownLoads(leases.dispatches, leases.seat_times)
        for uid, report in replay.fleet.load.items():
            known = leases.loads.of(uid, report)
            assert msgspec.structs.asdict(known) == msgspec.structs.asdict(fresh.of(uid, report))
