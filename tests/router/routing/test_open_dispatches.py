"""Nothing is counted twice: a dispatch is in the report or on top of it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


def reported(dispatches, admitted, counted=None):
    """A report that has come: up to which dispatch it goes, and how many it counts, if it states that."""
    stated = msgspec.UNSET if counted is None else {"router-a": counted, "router-b": 9}
    report = LoadReport(admitted_dispatches={"router-a": admitted}, open_dispatches=stated)
    dispatches.reported("worker-0", report)
    return report


@pytest.mark.parametrize(
    ("counted", "taken_off"),
    [
        (None, EndedLoad(seats=6, blocks=14)),
        (3, EndedLoad(seats=6, blocks=14)),
        (2, EndedLoad(seats=4, blocks=9)),
        (1, EndedLoad()),
        (0, EndedLoad()),
        (9, EndedLoad(seats=6, blocks=14)),
    ],
    ids=[
        "by an older worker",
        "both counted",
        "one had ended",
        "both had ended",
        "all had",
        "more than sent",
    ],
)
def test_what_had_ended_on_the_worker_before_the_report_is_not_taken_off_it_again(counted, taken_off):
    dispatches = OpenDispatches("router-a")
    first = dispatches.open("worker-0", uncached_tokens=1, seats=2, blocks=5)
    second = dispatches.open("worker-0", uncached_tokens=1, seats=4, blocks=9)
    third = dispatches.open("worker-0", uncached_tokens=1, seats=1, blocks=1)
    report = reported(dispatches, third, counted)

    dispatches.open("worker-0", uncached_tokens=1)  # above what the report includes

    dispatches.close("worker-0", first)
    dispatches.close("worker-0", second)

    assert dispatches.ended("worker-0", report) == taken_off


def test_a_report_without_a_router_counts_none_of_its_dispatches():
    dispatches = OpenDispatches("router-a")
    counter = dispatches.open("worker-0", uncached_tokens=1, seats=2, blocks=5)
    report = LoadReport(admitted_dispatches={"router-a": counter}, open_dispatches={"router-b": 4})
    dispatches.reported("worker-0", report)

    dispatches.close("worker-0", counter)

    assert dispatches.ended("worker-0", report) == EndedLoad()


def test_a_worker_that_claims_dispatches_which_were_never_sent_makes_a_router_keep_nothing():
    dispatches = OpenDispatches("router-a")
    counter = dispatches.open("worker-0", uncached_tokens=1)
    report = reported(dispatches, 2**53, 9)

    for _ in range(3):
        dispatches.close("worker-0", dispatches.open("worker-0", uncached_tokens=1))
    nothing = dispatches.ended("worker-0", report)
    dispatches.close("worker-0", counter)

    assert nothing == EndedLoad()
    assert dispatches.ended("worker-0", report) == EndedLoad(seats=1)


class ReportedFleet(RuleBasedStateMachine):
    """One router, one worker, and reports that take their time; dispatches end on the worker first."""

    def __init__(self):
        super().__init__()
        self.dispatches = OpenDispatches("router-a")
        self.sent = []
        self.here = set()
        self.on_worker = set()
        self.admitted = 0
        self.under_way = []
        self.report = None
        self.ends = 0
        """Here, so far."""
        self.ends_under_way = 0
        """Of them while the last report was under way: it may count them."""

    @rule()
    def send(self):
        counter = self.dispatches.open("worker-0", uncached_tokens=0)
        self.here.add(counter)
        self.sent.append(counter)

    @precondition(lambda self: self.sent)
    @rule()
    def arrive(self):
        self.admitted = self.sent.pop(0)
        self.on_worker.add(self.admitted)

    @precondition(lambda self: self.on_worker)
    @rule(data=st.data())
    def end_on_worker(self, data):
        self.on_worker.remove(data.draw(st.sampled_from(sorted(self.on_worker))))

    @precondition(lambda self: self.here - self.on_worker - set(self.sent))
    @rule(data=st.data())
    def end_here(self, data):
        ended = data.draw(st.sampled_from(sorted(self.here - self.on_worker - set(self.sent))))
        self.here.remove(ended)
        self.ends += 1
        self.dispatches.close("worker-0", ended)

    @rule()
    def state(self):
        running = len(self.on_worker)
        report = LoadReport(
            running_sequences=running,
            admitted_dispatches={"router-a": self.admitted},
            open_dispatches={"router-a": running} if running else {},
        )
        self.under_way.append((report, self.ends))

    @precondition(lambda self: self.under_way)
    @rule()
    def learn(self):
        self.report, ends_before = self.under_way.pop(0)
        self.ends_under_way = self.ends - ends_before
        self.dispatches.reported("worker-0", self.report)

    @invariant()
    def knows_each_that_is_there_or_on_its_way(self):
        if self.report is None:
            return
        unreported = self.dispatches.unreported("worker-0", self.report.admitted_dispatches).seats
        ended = self.dispatches.ended("worker-0", self.report).seats
        known = self.report.running_sequences - ended + unreported

        assert known >= len(self.on_worker) + len(self.sent)
        assert known <= len(self.here) + self.ends_under_way


TestReportedFleet = ReportedFleet.TestCase
TestReportedFleet.settings = settings(max_examples=100, stateful_step_count=40)
