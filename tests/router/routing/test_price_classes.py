"""Workers in classes of about the same price against a look at each of them."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.routing.cost import PriceFloor, Work
from warmfleet_router.routing.shortlist import PriceClasses, RequestFloor, ascending_floors

UIDS = [f"w{number}" for number in range(12)]

floors = st.builds(
    PriceFloor,
    idle_ms=st.sampled_from([0.0, 9.0, 9.5]) | st.floats(0, 200) | st.floats(0, 1e15),
    per_token_ms=st.sampled_from([0.4, 0.41]) | st.floats(1e-4, 10) | st.floats(1e-4, 1e15),
    free_tokens=st.sampled_from([0, 200]) | st.integers(0, 500),
    free_blocks=st.just(100.0),
)
works = st.builds(
    Work,
    uncached_tokens=st.integers(0, 3000) | st.integers(0, 200_000),
    needed_blocks=st.sampled_from([0, 100, 101]),
    sequences=st.sampled_from([1, 1, 2]),
)


def floor_of(work: Work, uid: str, floor: PriceFloor) -> RequestFloor:
    return floor.at(work.uncached_tokens), uid, floor.is_price_of(work)


class AskedUids(set[str]):
    """No uids; remembers which ones were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __contains__(self, uid: object) -> bool:
        self.asked.append(str(uid))
        return False


def classes_of(by_uid: dict[str, PriceFloor]) -> PriceClasses:
    classes = PriceClasses()
    for uid, floor in by_uid.items():
        classes.put(uid, floor)
    return classes


@settings(max_examples=300)
@given(
    updates=st.lists(st.tuples(st.sampled_from(UIDS), floors), max_size=60),
    requests=st.lists(works, min_size=1, max_size=4),
    skipped=st.sets(st.sampled_from(UIDS), max_size=3),
)
def test_after_any_updates_the_floors_are_those_of_each_worker_in_order(
    updates: Sequence[tuple[str, PriceFloor]], requests: Sequence[Work], skipped: set[str]
) -> None:
    classes, last = PriceClasses(), dict[str, PriceFloor]()

    for uid, floor in updates:
        classes.put(uid, floor)
        last[uid] = floor

    for work in requests:
        found = list(ascending_floors([(classes, work)], known=(), skipped=skipped))
        assert found == sorted(
            floor_of(work, uid, floor) for uid, floor in last.items() if uid not in skipped
        )


@settings(max_examples=100)
@given(
    first=st.dictionaries(st.sampled_from(UIDS[:6]), floors),
    second=st.dictionaries(st.sampled_from(UIDS[6:]), floors),
    first_work=works,
    second_work=works,
    known=st.lists(st.tuples(st.floats(0, 1000), st.just("known"), st.booleans())),
)
def test_groups_and_known_workers_are_merged_in_order(
    first: dict[str, PriceFloor],
    second: dict[str, PriceFloor],
    first_work: Work,
    second_work: Work,
    known: list[RequestFloor],
) -> None:
    groups = [(classes_of(first), first_work), (classes_of(second), second_work)]

    found = list(ascending_floors(groups, known=known, skipped=()))

    assert found == sorted(
        [
            *(floor_of(first_work, uid, floor) for uid, floor in first.items()),
            *(floor_of(second_work, uid, floor) for uid, floor in second.items()),
            *known,
        ]
    )


def test_workers_that_cost_more_are_not_looked_at() -> None:
    busy = {f"busy{number}": PriceFloor(300.0 + number, 0.8, 0, 100.0) for number in range(1000)}
    idle = {f"idle{number}": PriceFloor(9.0 + number / 100, 0.4, 200, 100.0) for number in range(20)}
    skipped = AskedUids()

    found = ascending_floors([(classes_of({**busy, **idle}), Work(2000, 100))], known=(), skipped=skipped)

    assert [next(found)[1] for _ in range(20)] == list(idle)
    assert sorted(skipped.asked) == sorted(idle)


def test_a_class_is_gone_with_its_last_worker() -> None:
    classes = classes_of({"a": PriceFloor(9.0, 0.4, 0, 100.0), "b": PriceFloor(9.0, 0.4, 0, 100.0)})
    assert len(list(classes)) == 1

    for number in range(100):
        classes.put("a", PriceFloor(9.0 + 50 * number, 0.4, 0, 100.0))

    assert len(list(classes)) == 2
