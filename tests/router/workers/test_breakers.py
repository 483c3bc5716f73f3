"""When a worker is ejected, and that it always comes back; the clock is a number."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmfleet_router.workers.breakers import Breakers, BreakerSettings, Cause, Trial

UIDS = ("a", "b", "c", "d", "e")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Breakers over a clock, without jitter."""

    def __init__(self, **changes: float) -> None:
        self.clock = Clock()
        self.ejections: list[tuple[str, Cause, float]] = []
        self.breakers = Breakers(
            BreakerSettings(**changes),  # type: ignore[arg-type]  # numbers of either kind
            now=self.clock,
            draw=lambda: 0.0,
            on_ejected=lambda uid, cause, _, seconds: self.ejections.append((uid, cause, seconds)),
        )

    def fail(self, uid: str, times: int = 1, epoch: str = "e") -> None:
        for _ in range(times):
            with self.breakers.trial(uid, epoch) as trial:
                trial.failed("reset")

    def succeed(self, uid: str) -> None:
        with self.breakers.trial(uid, "e") as trial:
            trial.answered()
            trial.completed()

    def ejected(self, *uids: str, epoch: str = "e") -> set[str]:
        return set(self.breakers.ejections(dict.fromkeys(uids or UIDS, epoch)).reasons)


def test_the_fifth_failure_in_a_row_ejects_for_thirty_seconds() -> None:
    bench = Bench()

    bench.fail("a", 4)
    assert bench.ejected() == set()
    bench.fail("a")
    assert bench.ejected() == {"a"}

    bench.clock.now += 29.9
    assert bench.ejected() == {"a"}
    bench.clock.now += 0.1
    assert bench.ejected() == set()
    assert bench.ejections == [("a", Cause.FAILURES, 30.0)]


def test_a_complete_answer_in_between_starts_the_count_anew() -> None:
    bench = Bench()

    for _ in range(10):
        bench.fail("a", 4)
        bench.succeed("a")

    assert bench.ejections == []


def test_a_stream_that_begins_and_breaks_every_time_is_a_failure_every_time() -> None:
    bench = Bench()

    for _ in range(5):
        with bench.breakers.trial("a", "e") as trial:
            trial.answered()
            trial.failed("broke off")

    assert bench.ejected() == {"a"}


def test_a_half_open_worker_gets_one_request_at_a_time() -> None:
    bench = Bench()
    bench.fail("a", 5)
    bench.clock.now += 30

    with bench.breakers.trial("a", "e") as probe:
        assert probe.is_probe
        assert bench.ejected() == {"a"}
    # the client of the probe left: no result, and the next request may probe
    assert bench.ejected() == set()


def test_a_request_that_shows_nothing_of_the_engine_is_no_probe_and_keeps_none_out() -> None:
    bench = Bench()
    bench.fail("a", 5)
    bench.clock.now += 30

    with bench.breakers.trial("a", "e", may_probe=False) as trial:
        assert not trial.is_probe
        assert bench.ejected() == set()
        with bench.breakers.trial("a", "e") as probe:
            assert probe.is_probe


def test_a_probe_that_fails_ejects_for_longer_and_one_that_answers_closes() -> None:
    bench = Bench()
    bench.fail("a", 5)
    for seconds in (60, 90, 120):
        bench.clock.now += 300
        bench.fail("a")
        assert bench.ejections[-1] == ("a", Cause.FAILURES, seconds)

    bench.clock.now += 300
    bench.succeed("a")

    assert bench.breakers.status("a", "e").state == "closed"
    bench.fail("a", 4)
    assert bench.ejected() == set()


def test_a_worker_that_just_came_back_is_ejected_by_its_next_failure() -> None:
    bench = Bench()
    bench.fail("a", 5)
    bench.clock.now += 30

    with bench.breakers.trial("a", "e") as probe:
        probe.answered()
        assert bench.ejected() == set()
        probe.failed("broke off")

    assert bench.ejected() == {"a"}


def test_calm_makes_the_next_ejection_short_again() -> None:
    bench = Bench()
    bench.fail("a", 5)
    bench.clock.now += 30
    bench.succeed("a")

    bench.clock.now += 300
    bench.fail("a", 5)

    assert bench.ejections == [("a", Cause.FAILURES, 30.0), ("a", Cause.FAILURES, 30.0)]


def test_answers_that_were_under_way_neither_close_nor_prolong() -> None:
    bench = Bench()
    with bench.breakers.trial("a", "e") as late, bench.breakers.trial("a", "e") as failing:
        bench.breakers.eject("a", "e", Cause.SILENT, "silent")
        late.completed()
        failing.failed("reset")

    assert bench.ejected() == {"a"}
    assert len(bench.ejections) == 1


@pytest.mark.parametrize(("workers", "bad"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_at_most_half_of_a_models_workers_are_ejected(workers: int, bad: int) -> None:
    bench = Bench()
    fleet = UIDS[:workers]
    for uid in fleet[:bad]:
        bench.fail(uid, 5)
    assert bench.ejected(*fleet) == set(fleet[:bad])

    bench.fail(fleet[bad], 5)

    ejections = bench.breakers.ejections(dict.fromkeys(fleet, "e"))
    assert ejections.reasons == {}
    assert ejections.panic


def test_in_a_panic_an_answer_closes_the_breaker_before_its_time() -> None:
    bench = Bench()
    for uid in ("a", "b"):
        bench.fail(uid, 5)
    bench.clock.now += 1

    bench.succeed("a")

    assert bench.ejected("a", "b") == {"b"}


def test_a_worker_that_was_started_again_begins_with_a_closed_breaker() -> None:
    bench = Bench()
    bench.fail("a", 5, epoch="first epoch")

    assert bench.ejected(epoch="first epoch") == {"a"}
    assert bench.ejected(epoch="second epoch") == set()
    bench.fail("a", 4, epoch="second epoch")
    assert bench.ejected(epoch="second epoch") == set()


class BreakersUnderFire(RuleBasedStateMachine):
    """Any order of dispatches, results and waiting, over five workers of one model."""

    uids = st.sampled_from(UIDS)

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.open: list[tuple[str, Trial, object]] = []

    @rule(uid=uids)
    def dispatch(self, uid: str) -> None:
        if uid not in self.bench.ejected():
            scope = self.bench.breakers.trial(uid, "e")
            self.open.append((uid, scope.__enter__(), scope))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), result=st.sampled_from(["answered", "completed", "failed", "none"]))
    def finish(self, data: st.DataObject, result: str) -> None:
        position = data.draw(st.integers(0, len(self.open) - 1))
        _, trial, scope = self.open[position]
        if result == "failed":
            trial.failed("reset")
        elif result != "none":
            getattr(trial, result)()
        if result != "answered":
            del self.open[position]
            scope.__exit__(None, None, None)  # type: ignore[attr-defined]  # a context manager

    @rule(uid=uids, cause=st.sampled_from(Cause))
    def eject(self, uid: str, cause: Cause) -> None:
        self.bench.breakers.eject(uid, "e", cause, "by rule")

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds: float) -> None:
        self.bench.clock.now += seconds

    @rule(uid=uids)
    def forget(self, uid: str) -> None:
        self.bench.breakers.forget(uid)
        assert self.bench.breakers.status(uid, "e").state == "closed"

    @rule(uid=uids)
    def restart(self, uid: str) -> None:
        self.bench.breakers.trial(uid, "later").release()

    @invariant()
    def those_that_are_not_closed_are_known(self) -> None:
        breakers = self.bench.breakers
        opened = {uid: one for uid, one in breakers._breakers.items() if one.opened_at is not None}
        assert breakers._opened == opened
        assert breakers.any_opened == bool(opened)

    @invariant()
    def never_more_than_half_is_left_out(self) -> None:
        for size in range(1, len(UIDS) + 1):
            assert len(self.bench.ejected(*UIDS[:size])) <= size / 2

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        breakers = self.bench.breakers
        assert len(breakers._breakers) <= len(UIDS)
        for breaker in breakers._breakers.values():
            assert 0 <= breaker.failures <= 5
            assert breaker.until - self.bench.clock.now <= 300

    @invariant()
    def every_worker_can_come_back(self) -> None:
        """Once every dispatch has ended and the longest ejection is over, no worker is left out."""
        if not self.open:
            later, now = self.bench.clock.now + 301, self.bench.clock.now
            self.bench.clock.now = later
            assert self.bench.ejected() == set()
            self.bench.clock.now = now


TestBreakersUnderFire = BreakersUnderFire.TestCase
TestBreakersUnderFire.settings = settings(max_examples=60, stateful_step_count=40)
