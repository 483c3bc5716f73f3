"""Fair order of tenants: the bound on unfairness, work conservation, no starvation, order within a tenant."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.admission.fair_queue import FairQueue, Waiting

COSTS = st.integers(1, 1000)
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}


def add(
    queue: FairQueue[int], tenant: str, cost: float = 10, *, priority: int = 0, item: int = 0
) -> Waiting[int]:
    return queue.add(tenant, item, weight=WEIGHTS.get(tenant, 1.0), priority=priority, cost=cost)


def waiting_of(queue: FairQueue[int], tenant: str) -> int:
    return sum(waiting.tenant == tenant for waiting in queue)


def serve_next(queue: FairQueue[int]) -> Waiting[int]:
    waiting = queue.head(1)[0]
    queue.serve(waiting, waiting.cost)
    return waiting


@settings(max_examples=200)
@given(
    before=st.lists(st.tuples(st.sampled_from("abc"), COSTS), max_size=20),
    costs=st.fixed_dictionaries(
        {name: st.lists(COSTS, min_size=30, max_size=30) for name in ("a", "b", "c")}
    ),
    rounds=st.integers(1, 30),
)
def test_two_tenants_that_wait_throughout_differ_by_at_most_one_request_each(
    before: list[tuple[str, int]], costs: dict[str, list[int]], rounds: int
) -> None:
    # given: any history, then three tenants that keep waiting
    queue: FairQueue[int] = FairQueue()
    for tenant, cost in before:
        queue.serve_at_once(tenant, weight=WEIGHTS[tenant], cost=cost)
    for tenant, line in costs.items():
        for cost in line:
            add(queue, tenant, cost)
    got: Counter[str] = Counter()

    # when
    for _ in range(rounds):
        waiting = serve_next(queue)
        got[waiting.tenant] += int(waiting.cost)
        if min(waiting_of(queue, tenant) for tenant in costs) == 0:
            break

    # then: Goyal, Vin, Cheng 1996, theorem 1
    largest = {name: max(line) / WEIGHTS[name] for name, line in costs.items()}
    for one, other in itertools.permutations(costs, 2):
        gap = got[one] / WEIGHTS[one] - got[other] / WEIGHTS[other]
        assert gap <= largest[one] + largest[other] + 1e-9


@settings(max_examples=200)
@given(costs=st.lists(st.tuples(COSTS, COSTS), min_size=10, max_size=40))
def test_without_a_history_the_gap_is_one_request_of_each(costs: list[tuple[int, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for one, other in costs:
        add(queue, "a", one)
        add(queue, "b", other)
    got = {"a": 0.0, "b": 0.0}
    while waiting_of(queue, "a") and waiting_of(queue, "b"):
        waiting = serve_next(queue)
        got[waiting.tenant] += waiting.cost / WEIGHTS[waiting.tenant]

        bound = max(one for one, _ in costs) + max(other for _, other in costs) / 2
        assert abs(got["a"] - got["b"]) <= bound


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), COSTS, st.integers(-2, 2)),
            st.tuples(st.sampled_from(["serve", "leave", "correct"]), st.integers(0, 50), COSTS, st.just(0)),
        ),
        max_size=60,
    )
)
def test_each_request_is_served_once_and_the_most_urgent_of_a_tenant_first(
    steps: list[tuple[str, str | int, int, int]],
) -> None:
    # given: a plain list as the oracle
    queue: FairQueue[int] = FairQueue()
    oracle: list[Waiting[int]] = []
    for number, (what, which, cost, priority) in enumerate(steps):
        if what == "add":
            oracle.append(add(queue, str(which), cost, priority=priority, item=number))
        elif what == "correct":
            queue.correct("abc"[int(which) % 3], cost - 500)
        elif oracle:
            if what == "serve":
                waiting = serve_next(queue)
                mine = [other.place for other in oracle if other.tenant == waiting.tenant]
                assert waiting.place == min(mine)
            else:
                waiting = oracle[int(which) % len(oracle)]
                queue.leave(waiting)
                queue.leave(waiting)
            oracle.remove(waiting)

        # then: work is conserved: as long as a request waits, one is next
        assert len(queue) == len(oracle)
        assert {id(waiting) for waiting in queue} == {id(waiting) for waiting in oracle}
        head = queue.head(1000)
        assert sorted(map(id, head)) == sorted(map(id, oracle))
        assert abs(queue.cost - sum(waiting.cost for waiting in oracle)) < 1e-6


def test_a_light_tenant_is_next_after_any_flood() -> None:
    queue: FairQueue[int] = FairQueue()
    for _ in range(1000):
        add(queue, "flooder")
    for _ in range(100):
        serve_next(queue)

    light = add(queue, "light")

    assert queue.head(2)[0] is light or queue.head(2)[1] is light
    assert queue.before("light", weight=1.0, priority=0).requests >= 1


def test_absence_earns_no_credit() -> None:
    # given: one tenant was served for long while the other was away
    queue: FairQueue[int] = FairQueue()
    for _ in range(100):
        queue.serve_at_once("busy", weight=1.0, cost=10)
    for _ in range(20):
        add(queue, "busy")
        add(queue, "returned")

    first = Counter(serve_next(queue).tenant for _ in range(20))

    assert abs(first["busy"] - first["returned"]) <= 1


def test_weights_divide_a_full_fleet() -> None:
    queue: FairQueue[int] = FairQueue()
    for _ in range(300):
        add(queue, "a")
        add(queue, "b")

    served = Counter(serve_next(queue).tenant for _ in range(300))

    assert abs(served["b"] - 2 * served["a"]) <= 3


def test_a_charge_is_corrected_to_the_true_cost() -> None:
    # given: both were charged 10 per request, but those of a cost 30
    queue: FairQueue[int] = FairQueue()
    for _ in range(200):
        queue.add("a", 0, weight=1.0, priority=0, cost=10)
        queue.add("d", 0, weight=1.0, priority=0, cost=10)
    served: Counter[str] = Counter()
    for _ in range(200):
        waiting = serve_next(queue)
        served[waiting.tenant] += 1
        queue.correct(waiting.tenant, 20 if waiting.tenant == "a" else 0)

    assert abs(served["d"] - 3 * served["a"]) <= 4


def test_before_a_new_request_come_its_tenants_own_and_as_much_of_the_others() -> None:
    queue: FairQueue[int] = FairQueue()
    for _ in range(100):
        add(queue, "flooder")
    for _ in range(3):
        add(queue, "light")

    assert queue.before("light", weight=1.0, priority=0).cost == 3 * 10 + 3 * 10
    assert queue.before("flooder", weight=1.0, priority=0).requests == 103
    assert queue.before("new", weight=1.0, priority=0).requests == 0


def test_what_is_more_urgent_stands_before_less_urgent_requests_of_its_tenant() -> None:
    queue: FairQueue[int] = FairQueue()
    for _ in range(10):
        add(queue, "a", priority=5)

    assert queue.before("a", weight=1.0, priority=0).requests == 0
    assert queue.before("a", weight=1.0, priority=5).requests == 10


def test_counters_of_tenants_that_left_are_bounded() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(5000):
        queue.serve_at_once(f"tenant-{number}", weight=1.0, cost=1)

    assert len(queue._tenants) <= 1025
