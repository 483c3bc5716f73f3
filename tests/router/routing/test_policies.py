"""The policies, as tables: which of the candidates is first."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.routing.cost import PRIOR, CostTerms, WorkerLoad
from warmfleet_router.routing.policies import (
    LOAD_POLICIES,
    POLICIES,
    Candidate,
    RoutedRequest,
    lowest_cost,
    rendezvous_weights,
)


def candidate(uid: str, total_ms: float = 100.0, *, sequences: int = 0, queued: int = 0) -> Candidate:
    return Candidate(
        uid=uid,
        endpoint=f"pod-{uid}",
        precise=True,
        cached_tokens=0,
        pending_tokens=0,
        uncached_tokens=10,
        load=WorkerLoad(running_sequences=sequences, queued_uncached_tokens=queued),
        rates=PRIOR,
        cost=CostTerms(wait_ms=0, prefill_ms=total_ms, base_ms=0, externality_ms=0, later_ms=0),
    )


def request(key: bytes = b"key", dispatch_count: int = 0) -> RoutedRequest:
    return RoutedRequest(head_key=key, tie_key=key, dispatch_count=dispatch_count)


def ranked(policy: str, candidates: Sequence[Candidate], asked: RoutedRequest, count: int = 99) -> list[str]:
    if policy in LOAD_POLICIES:
        return list(LOAD_POLICIES[policy]({one.uid: one.load for one in candidates}, asked, count).uids)
    return [one.uid for one in lowest_cost(candidates, asked).candidates]


def best(policy: str, candidates: list[Candidate], asked: RoutedRequest) -> str:
    return ranked(policy, candidates, asked)[0]


@pytest.mark.parametrize(
    ("costs", "equals"),
    [
        ({"a": 100, "b": 106}, {"a"}),
        ({"a": 100, "b": 104.9}, {"a", "b"}),
        ({"a": 10, "b": 14.9}, {"a", "b"}),
        ({"a": 10, "b": 15.1}, {"a"}),
        ({"a": 1000, "b": 1049, "c": 1051}, {"a", "b"}),
    ],
    ids=["6 % apart", "within 5 %", "within 5 ms", "beyond 5 ms", "5 % of the best"],
)
def test_lowest_cost_spreads_over_equals_only(costs: dict[str, float], equals: set[str]) -> None:
    candidates = [candidate(uid, total_ms) for uid, total_ms in costs.items()]

    chosen = {best("LowestCost", candidates, request(str(n).encode())) for n in range(200)}

    assert chosen == equals


def test_equals_are_shared_evenly_by_key() -> None:
    candidates = [candidate(uid) for uid in "abc"]

    shares = Counter(best("LowestCost", candidates, request(str(n).encode())) for n in range(3000))

    assert all(850 < share < 1150 for share in shares.values())


def test_a_worker_that_joins_takes_keys_only_for_itself() -> None:
    three, four = [[candidate(uid) for uid in uids] for uids in ("abc", "abcd")]
    asked = [request(str(n).encode()) for n in range(300)]

    moved = {
        best("LowestCost", four, r)
        for r in asked
        if best("LowestCost", three, r) != best("LowestCost", four, r)
    }

    assert moved == {"d"}


def test_least_loaded_counts_sequences_then_queued_tokens() -> None:
    candidates = [
        candidate("a", sequences=2),
        candidate("b", sequences=1, queued=9),
        candidate("c", sequences=1),
    ]

    assert best("LeastLoaded", candidates, request()) == "c"


def test_round_robin_takes_the_workers_one_after_the_other_in_any_order_of_discovery() -> None:
    candidates = [candidate(uid) for uid in "cab"]

    chosen = [best("RoundRobin", candidates, request(dispatch_count=count)) for count in range(4)]

    assert chosen == ["a", "b", "c", "a"]


def test_consistent_hash_keeps_a_head_on_one_worker_until_that_is_a_quarter_above_the_mean() -> None:
    idle = [candidate(uid) for uid in "abcd"]
    owner = best("ConsistentHash", idle, request())
    # 8 sequences in all: at most ceil(1.25 * 9 / 4) = 3 each; 10 in all: at most 4.
    at_limit = [candidate(uid, sequences=2) for uid in "abcd"]
    above = [candidate(uid, sequences=4 if uid == owner else 2) for uid in "abcd"]

    assert best("ConsistentHash", at_limit, request()) == owner
    assert best("ConsistentHash", above, request()) != owner


@given(
    uids=st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    policy=st.sampled_from(sorted(POLICIES)),
    key=st.binary(min_size=1, max_size=16),
    data=st.data(),
)
def test_every_router_makes_the_same_choice_from_the_same_view(
    uids: list[str], policy: str, key: bytes, data: st.DataObject
) -> None:
    candidates = [
        candidate(
            uid,
            data.draw(st.floats(0, 1000)),
            sequences=data.draw(st.integers(0, 5)),
            queued=data.draw(st.integers(0, 50)),
        )
        for uid in uids
    ]
    shuffled = data.draw(st.permutations(candidates))

    assert ranked(policy, candidates, request(key)) == ranked(policy, shuffled, request(key))
    assert len(ranked(policy, candidates, request(key))) == len(candidates)


@given(
    loads=st.dictionaries(
        st.text("abcdef", min_size=1, max_size=4),
        st.builds(WorkerLoad, running_sequences=st.integers(0, 3), queued_uncached_tokens=st.integers(0, 3)),
        min_size=1,
        max_size=20,
    ),
    policy=st.sampled_from(sorted(LOAD_POLICIES)),
    dispatch_count=st.integers(0, 30),
    count=st.integers(1, 20),
)
def test_the_first_workers_of_an_order_are_those_of_the_whole_one(
    loads: dict[str, WorkerLoad], policy: str, dispatch_count: int, count: int
) -> None:
    asked = request(dispatch_count=dispatch_count)

    first = LOAD_POLICIES[policy](loads, asked, count)
    whole = LOAD_POLICIES[policy](loads, asked, len(loads))

    assert sorted(whole.uids) == sorted(loads)
    assert (first.uids, first.scores) == (whole.uids[:count], whole.scores[:count])
    assert first.reason == whole.reason


def test_rendezvous_weights_are_the_same_in_every_process() -> None:
    assert rendezvous_weights(b"key", ["w0"]) == {"w0": 10522015769044675290}
