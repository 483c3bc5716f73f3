"""Which prefixes of workers that go are moved, where to, and by which router."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.prewarm.handover_plan import HandoverPlan, Skipped, Terms, of_share, share_of
from warmfleet_router.prewarm.hot_prefixes import HotPrefix, PrefixOrigin

SIZE = 4
PAYBACK_SECONDS = 600.0


def terms(*victims, share=0, shares=1):
    return Terms(frozenset(victims), PAYBACK_SECONDS, share, shares)


def chain(*names):
    """Hashes of a prompt's blocks."""
    return [BlockHash(f"{name}".encode().ljust(16, b".")) for name in names]


def hot(hashes, uses=3.0, used_at=0.0):
    origin = PrefixOrigin("a", b"salt", "m", "d")
    return HotPrefix(hashes[-1], origin, array("I", range(SIZE * len(hashes))), uses, used_at)


def planned(prefixes, holders, rooms, *, of=None, now=0.0):
    """The plan for chains of hashes; `holders` gives the blocks of each worker."""

    def matches(hashes):
        found = {}
        for uid, blocks in holders.items():
            count = next((place for place, one in enumerate(hashes) if one not in blocks), len(hashes))
            if count:
                found[uid] = count
        return found

    plan = HandoverPlan(of or terms("victim"), room_tokens=rooms, matches=matches, block_size_tokens=SIZE)
    for prefix, hashes in prefixes:
        plan.consider(prefix, lambda hashes=hashes: hashes, now)
    return plan


def test_what_only_a_victim_holds_is_moved_and_what_another_holds_is_not():
    only, shared, elsewhere = chain("a", "b"), chain("c", "d"), chain("e")
    plan = planned(
        [(hot(one), one) for one in (only, shared, elsewhere)],
        {"victim": {*only, *shared}, "stays": {*shared, *elsewhere}},
        {"stays": 100},
    )

    assert [(move.prefix.block_hash, move.uid, move.tokens) for move in plan.moves] == [
        (only[-1], "stays", 8)
    ]
    assert plan.skipped == {Skipped.HELD: 1}


def test_what_two_victims_hold_and_no_other_is_moved_once():
    only = chain("a", "b")
    plan = planned(
        [(hot(only), only)],
        {"one": set(only), "two": set(only)},
        {"stays": 100},
        of=terms("one", "two"),
    )

    assert len(plan.moves) == 1


def test_what_is_not_expected_within_the_payback_time_is_not_worth_it():
    only = chain("a")
    often, rare = hot(only, uses=0.3), hot(only, uses=0.28)  # 3.47 expected uses of each that is counted

    assert len(planned([(often, only)], {"victim": set(only)}, {"stays": 100}).moves) == 1
    assert planned([(rare, only)], {"victim": set(only)}, {"stays": 100}).skipped == {Skipped.RARE: 1}
    of_four = planned([(rare, only)], {"victim": set(only)}, {"stays": 100}, of=terms("victim", shares=4))
    assert len(of_four.moves) == 1  # each of four routers sees a quarter of the requests


def test_a_prefix_goes_where_most_of_it_is_and_so_do_those_that_continue_it():
    base, longer = chain("a", "b", "c"), chain("a", "b", "c", "d")
    plan = planned(
        [(hot(base), base), (hot(longer), longer)],
        {"victim": set(longer), "has some": set(base[:2]), "has none": set()},
        {"has some": 100, "has none": 100},
    )

    assert [(move.uid, move.tokens) for move in plan.moves] == [("has some", SIZE), ("has some", SIZE)]


def test_prefixes_without_a_common_beginning_spread():
    prefixes = [chain(f"{number}-0", f"{number}-1") for number in range(60)]
    rooms = {f"w{number}": 10_000 for number in range(3)}
    plan = planned([(hot(one), one) for one in prefixes], {"victim": set().union(*prefixes)}, rooms)

    assert min(Counter(move.uid for move in plan.moves).values()) >= 10


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 80), max_size=3),
)
def test_no_worker_gets_more_than_it_has_room_for_and_the_most_used_go_first(lengths, rooms):
    prefixes = [chain(*(f"{number}-{place}" for place in range(n))) for number, n in enumerate(lengths)]
    plan = planned([(hot(one), one) for one in prefixes], {"victim": set().union(*prefixes)}, rooms)

    given_tokens = Counter()
    for move in plan.moves:
        given_tokens[move.uid] += move.tokens
    assert all(given_tokens[uid] <= rooms[uid] for uid in given_tokens)
    assert len(plan.moves) + plan.skipped[Skipped.NO_ROOM] == len(lengths)
    left = max((rooms[uid] - given_tokens[uid] for uid in rooms), default=0)
    moved = {move.prefix.block_hash for move in plan.moves}
    assert all(SIZE * len(one) > left for one in prefixes if one[-1] not in moved)


@given(st.sets(st.binary(min_size=16, max_size=16), max_size=40), st.integers(1, 9))
def test_each_prefix_is_moved_by_exactly_one_router(hashes, routers):
    every = [hot([BlockHash(one)]) for one in hashes]
    own = [of_share(every, terms("v", share=share, shares=routers), own=True) for share in range(routers)]
    others = [of_share(every, terms("v", share=share, shares=routers), own=False) for share in range(routers)]

    assert sorted(one.block_hash for part in own for one in part) == sorted(hashes)
    assert all(len(mine) + len(theirs) == len(every) for mine, theirs in zip(own, others, strict=True))


def test_one_router_more_takes_prefixes_from_all_and_moves_no_others():
    hashes = [BlockHash(f"{number}".encode().ljust(16)) for number in range(1000)]
    before = [share_of(one, 3) for one in hashes]
    after = [share_of(one, 4) for one in hashes]
    changed = [new for old, new in zip(before, after, strict=True) if old != new]

    assert set(changed) == {3}
    assert 200 <= len(changed) <= 300
