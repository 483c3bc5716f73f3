"""Decisions: recorded step by step, kept in a bounded ring, found by either id, every difference labelled."""

from typing import Final

import msgspec
import pytest

from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decision_ring import MAX_DECISIONS, DecisionRing
from warmfleet_router.routing.decisions import Choice, RequestRecord, WorkerAnswer, difference_of
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.settings import parse_settings
from warmfleet_testing.router.object_state import unchanged
from warmfleet_testing.router.picker_fleet import PickerFleet, prompts

DECIDED_AT_SECONDS: Final = 1_700_000_000.0


class StepClock:
    """A clock that goes on by 1 ms with every look at it."""

    def __init__(self) -> None:
        self.milliseconds = 0

    def __call__(self) -> float:
        self.milliseconds += 1
        return self.milliseconds / 1e3


def recorder(name: str, request_id: str = "") -> DecisionRecorder:
    request = RequestRecord(
        id=name,
        request_id=request_id or f"request-{name}",
        path="/v1/completions",
        model="m",
        policy="LowestCost",
        prompt_tokens=100,
        prompts=1,
        decided_at=DECIDED_AT_SECONDS,
    )
    return DecisionRecorder(request, since=0.0, now=StepClock())


def picked(fleet: PickerFleet) -> PickedWorker:
    return fleet.pick(prompts(range(100)))


@pytest.fixture
def fleet() -> PickerFleet:
    return PickerFleet("a", "b")


def choice(predicted: int = 64, pending: int = 0, *, precise: bool = True) -> Choice:
    return Choice(
        uid="a",
        endpoint="pod-a",
        reason="lowest cost",
        runner_up=None,
        precise=precise,
        candidates=(),
        candidate_count=1,
        predicted_prompt_tokens=100,
        predicted_cached_tokens=predicted,
        pending_tokens=pending,
        last_block=None,
    )


def test_each_step_is_recorded_with_its_time_and_leaves_what_was_read_as_it_was(fleet: PickerFleet) -> None:
    record = recorder("1")
    seen = [record.decision]

    def step() -> None:
        seen.append(record.decision)

    record.queued(3, "4 wait already")
    step()
    record.dispatched(picked(fleet), dispatch=5, held_seconds=0.25)
    step()
    record.attempt_failed("the worker answered 503")
    record.dispatched(picked(fleet), dispatch=6, held_seconds=0.25)
    step()
    record.answered(WorkerAnswer(status=200, headers_after_ms=record.age_ms(), cached_tokens=0))
    assert record.first_byte() == 5.0
    record.became("completed")
    step()
    record.ended()
    step()

    shown = [decision.as_json() for decision in seen]
    assert [entry["held_behind"] for entry in shown] == [None, 3, 3, 3, 3, 3]
    assert [entry["decision_ms"] for entry in shown] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [entry["held_ms"] for entry in shown] == [None, None, 250.0, 250.0, 250.0, 250.0]
    assert [entry["retries"] for entry in shown] == [0, 0, 0, 1, 1, 1]
    assert [entry.get("dispatch") for entry in shown] == [None, None, 5, 6, 6, 6]
    assert [entry.get("dispatched_after_ms") for entry in shown] == [None, None, 2.0, 3.0, 3.0, 3.0]
    assert [entry.get("error") for entry in shown] == [None] * 6
    assert [entry.get("status") for entry in shown] == [None, None, None, None, 200, 200]
    assert [entry.get("headers_after_ms") for entry in shown] == [None, None, None, None, 4.0, 4.0]
    assert [entry["outcome"] for entry in shown] == ["in flight"] * 4 + ["completed"] * 2
    assert [entry["total_ms"] for entry in shown] == [None, None, None, None, None, 6.0]
    assert [attempt.error for attempt in seen[-1].attempts] == ["the worker answered 503", None]


def test_a_request_that_did_not_wait_was_decided_when_it_was_dispatched(fleet: PickerFleet) -> None:
    record = recorder("1")

    record.dispatched(picked(fleet), dispatch=1, held_seconds=None)

    decision = record.decision
    assert decision.decision_ms == decision.attempts[0].dispatched_after_ms == 1.0
    assert (decision.queue_place, decision.held_ms, decision.mode) == (None, None, "precise")


def test_a_request_that_ends_without_an_outcome_has_failed() -> None:
    record = recorder("1")

    record.ended()

    assert (record.decision.outcome, record.decision.total_ms) == ("failed", 1.0)


def test_the_last_outcome_counts() -> None:
    record = recorder("1")

    record.became("completed")
    record.became("client left")
    record.ended()

    assert record.decision.outcome == "client left"


def test_the_ring_keeps_only_the_newest() -> None:
    ring = DecisionRing(capacity=3)
    for number in range(5):
        ring.add(recorder(str(number)))

    assert [entry.request.id for entry in ring.newest(10)] == ["4", "3", "2"]
    assert ring.find("1") is None
    assert ring.find("request-1") is None
    assert len(ring) == 3


def test_a_flag_sets_how_many_are_kept() -> None:
    assert parse_settings(["--ring-size", "7"], {}).ring_size == 7
    assert parse_settings([], {}).ring_size == MAX_DECISIONS


def test_a_decision_that_ended_is_found_as_it_was(fleet: PickerFleet) -> None:
    ring = DecisionRing(capacity=4)
    record = recorder("0")
    ring.add(record)
    for dispatch in (1, 2):
        record.dispatched(picked(fleet), dispatch=dispatch, held_seconds=None)
    record.answered(WorkerAnswer(status=200, headers_after_ms=3.0))
    record.ended()
    ring.add(recorder("1"))

    ring.ended(record)
    ring.ended(record)
    ring.ended(recorder("never added"))

    found = ring.find("0")
    assert found is not record.decision
    assert found == ring.find("request-0") == record.decision
    assert found is not None
    assert found.as_json() == record.decision.as_json()
    assert [entry.request.id for entry in ring.newest(4)] == ["1", "0"]


def test_what_is_recorded_is_in_the_ring_at_once(fleet: PickerFleet) -> None:
    ring = DecisionRing(capacity=2)
    record = recorder("0")
    ring.add(record)

    record.dispatched(picked(fleet), dispatch=1, held_seconds=None)

    assert [decision.attempts[0].dispatch for decision in ring.newest(1)] == [1]


def test_no_query_of_the_ring_writes(fleet: PickerFleet) -> None:
    ring = DecisionRing(capacity=3)
    records = [recorder(str(number)) for number in range(5)]
    for record in records:
        ring.add(record)
        record.dispatched(picked(fleet), dispatch=1, held_seconds=None)
    ring.ended(records[-1])

    with unchanged(ring):
        found = [ring.find(name) is not None for name in ("3", "4", "request-4", "0")]
        assert found == [True, True, True, False]
        assert len(ring.newest(9)) == len(ring) == 3


def test_a_decision_may_end_after_it_has_left_the_ring() -> None:
    ring = DecisionRing(capacity=1)
    late = recorder("0")
    ring.add(late)
    ring.add(recorder("1"))

    ring.ended(late)

    assert [entry.request.id for entry in ring.newest(4)] == ["1"]


def test_the_id_of_a_decision_goes_before_the_same_id_of_a_later_request() -> None:
    ring = DecisionRing()
    for entry in (recorder("a"), recorder("b", request_id="a")):
        ring.add(entry)
        ring.ended(entry)

    found = ring.find("a")
    assert found is not None
    assert found.request.id == "a"


def test_a_request_id_that_was_used_twice_finds_the_newer_decision() -> None:
    ring = DecisionRing(capacity=2)
    for number in range(3):
        ring.add(recorder(str(number), request_id="same"))

    found = ring.find("same")
    assert found is not None
    assert found.request.id == "2"


def test_json_shows_the_last_attempt_on_top_and_the_failed_ones_beside_it(fleet: PickerFleet) -> None:
    record = recorder("1")
    first = picked(fleet)
    second = fleet.pick(prompts(range(100)), excluded=[first.candidate.uid])
    record.dispatched(first, dispatch=1, held_seconds=None)
    record.dispatched(second, dispatch=2, held_seconds=None)

    shown = record.decision.as_json()

    assert shown["uid"] == second.candidate.uid != first.candidate.uid
    assert shown["retries"] == 1
    assert [entry["uid"] for entry in shown["retried"]] == [first.candidate.uid]  # type: ignore[attr-defined]  # plain JSON
    assert msgspec.json.decode(msgspec.json.encode(shown))["id"] == "1"


@pytest.mark.parametrize(
    ("predicted", "pending", "actual", "is_coming", "expected"),
    [
        (64, 0, 64, False, "none"),
        (64, 0, 80, False, "stored_since"),
        (64, 0, 32, False, "evicted"),
        (64, 32, 32, True, "not_yet_computed"),
        (64, 32, 32, False, "preempted"),
        (64, 32, 16, True, "evicted"),
        (64, 0, None, False, "unknown"),
    ],
    ids=["equal", "more", "resident block gone", "leader at work", "leader gone", "both", "no answer"],
)
def test_each_difference_has_its_reason(
    predicted: int, pending: int, actual: int | None, is_coming: bool, expected: str
) -> None:
    assert difference_of(choice(predicted, pending), actual, is_coming=is_coming) == expected


def test_a_load_only_attempt_predicts_nothing() -> None:
    assert difference_of(choice(precise=False), 64, is_coming=False) == "unknown"


def test_a_decision_that_ended_takes_no_more_than_a_few_hundred_bytes(fleet: PickerFleet) -> None:
    ring = DecisionRing(capacity=1)
    record = recorder("0")
    ring.add(record)
    for dispatch, status in ((1, 503), (2, 200)):
        record.dispatched(fleet.pick(prompts(range(100))), dispatch=dispatch, held_seconds=None)
        record.answered(
            WorkerAnswer(
                status=status,
                headers_after_ms=2.5,
                prompt_tokens=100,
                cached_tokens=0,
                last_block_matches=True,
                difference="none",
                position="e:1",
            )
        )
    record.ended()
    ring.ended(record)

    (kept,) = ring._slots
    assert isinstance(kept, bytes)
    assert len(kept) <= 724


def test_decisions_that_are_alike_take_less_than_half_of_their_encoding(fleet: PickerFleet) -> None:
    ring = DecisionRing(capacity=9)
    records = [recorder(f"{number:032x}") for number in range(9)]
    for record in records:
        ring.add(record)
        record.dispatched(fleet.pick(prompts(range(100))), dispatch=1, held_seconds=None)
        ring.ended(record)

    encoded = sum(len(msgspec.msgpack.encode(record.decision)) for record in records[1:])
    kept = sum(len(slot) for slot in ring._slots[1:] if isinstance(slot, bytes))

    assert 0 < kept < encoded / 2
    assert ring.newest(9) == [record.decision for record in reversed(records)]
