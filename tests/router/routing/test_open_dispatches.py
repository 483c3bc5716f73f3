"""Nothing is counted twice: a dispatch is in the report or on top of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_router.routing.open_dispatches import (
    MAX_OPEN_DISPATCHES,
    EndedLoad,
    OpenDispatches,
    UnreportedLoad,
)


def test_a_dispatch_counts_until_a_report_includes_it():
    dispatches = OpenDispatches("router-a")
    first = dispatches.open("worker-0", uncached_tokens=100, blocks=7)
    second = dispatches.open("worker-0", uncached_tokens=20, seats=2, blocks=3)

    assert dispatches.unreported("worker-0", {}) == UnreportedLoad(tokens=120, seats=3, blocks=10)
    assert dispatches.unreported("worker-0", {"router-a": first}) == UnreportedLoad(20, 2, 3)
    assert dispatches.unreported("worker-0", {"router-a": second}) == UnreportedLoad()


def test_what_a_worker_admitted_from_another_router_changes_nothing_about_ours():
    dispatches = OpenDispatches("router-a")
    dispatches.open("worker-0", uncached_tokens=100)

    assert dispatches.unreported("worker-0", {"router-b": 999}).tokens == 100


def test_tokens_are_charged_until_the_first_byte_and_the_seat_until_the_last():
    dispatches = OpenDispatches("router-a")
    counter = dispatches.open("worker-0", uncached_tokens=100, blocks=7)

    dispatches.first_byte("worker-0", counter)
    streaming = dispatches.unreported("worker-0", {})
    dispatches.close("worker-0", counter)
    dispatches.close("worker-0", counter)

    assert streaming == UnreportedLoad(tokens=0, seats=1, blocks=7)
    assert dispatches.unreported("worker-0", {}) == UnreportedLoad()
    assert dispatches.open_count("worker-0") == 0


def test_a_worker_that_comes_back_never_sees_a_counter_again():
    dispatches = OpenDispatches("router-a")
    before = dispatches.open("worker-0", uncached_tokens=1)

    dispatches.forget("worker-0")
    after = dispatches.open("worker-0", uncached_tokens=1)

    assert after > before
    assert dispatches.unreported("worker-0", {"router-a": before}).seats == 1


def test_leaked_dispatches_are_bounded():
    dispatches = OpenDispatches("router-a")
    for _ in range(MAX_OPEN_DISPATCHES + 3):
        dispatches.open("worker-0", uncached_tokens=1)

    assert dispatches.open_count("worker-0") == MAX_OPEN_DISPATCHES


@settings(max_examples=100)
@given(st.data())
def test_report_and_charges_together_are_always_the_true_load(data):
    # The worker admits in order of dispatch; the report may lag behind by any number of admissions.
    dispatches = OpenDispatches("router-a")
    open_now: dict[int, tuple[int, int]] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        if open_now and data.draw(st.booleans()):
            counter = data.draw(st.sampled_from(sorted(open_now)))
            dispatches.close("worker-0", counter)
            del open_now[counter]
        else:
            tokens, seats = data.draw(st.tuples(st.integers(0, 500), st.integers(1, 8)))
            open_now[dispatches.open("worker-0", uncached_tokens=tokens, seats=seats)] = (tokens, seats)
    admitted = data.draw(st.integers(0, 31))
    reported = [charge for counter, charge in open_now.items() if counter <= admitted]

    unreported = dispatches.unreported("worker-0", {"router-a": admitted})

    assert unreported.tokens + sum(tokens for tokens, _ in reported) == sum(t for t, _ in open_now.values())
    assert unreported.seats + sum(seats for _, seats in reported) == sum(s for _, s in open_now.values())


def test_what_ended_is_taken_off_the_report_that_still_counts_it():
    dispatches = OpenDispatches("router-a")
    first = dispatches.open("worker-0", uncached_tokens=1, seats=2, blocks=5)
    second = dispatches.open("worker-0", uncached_tokens=1, seats=4, blocks=9)
    report = LoadReport(running_sequences=2, admitted_dispatches={"router-a": first})
    dispatches.reported("worker-0", report)
    before = dispatches.ended("worker-0", report)

    dispatches.close("worker-0", first)
    dispatches.close("worker-0", first)
    dispatches.close("worker-0", second)

    assert before == EndedLoad()
    assert dispatches.ended("worker-0", report) == EndedLoad(seats=2, blocks=5)
    assert dispatches.ended("worker-0", LoadReport()) == EndedLoad()
