"""The decision ring: bounded, found by either id, labels for every difference."""

import msgspec
import pytest

from warmfleet_router.routing.decisions import Attempt, Decision, DecisionRing, difference_of
from warmfleet_testing.router.object_state import unchanged


def attempt(predicted: int = 64, pending: int = 0, *, precise: bool = True, uid: str = "a") -> Attempt:
    return Attempt(
        uid=uid,
        endpoint=f"pod-{uid}",
        reason="lowest cost",
        runner_up=None,
        precise=precise,
        candidates=[],
        candidate_count=1,
        predicted_prompt_tokens=100,
        predicted_cached_tokens=predicted,
        pending_tokens=pending,
        last_block=None,
    )


def decision(name: str, request_id: str = "", attempts: list[Attempt] | None = None) -> Decision:
    return Decision(
        id=name,
        request_id=request_id or f"request-{name}",
        path="/v1/completions",
        model="m",
        policy="LowestCost",
        mode="precise",
        prompt_tokens=100,
        prompts=1,
        decided_at=0.0,
        decision_ms=0.1,
        attempts=attempts or [],
    )


def test_the_ring_keeps_only_the_newest() -> None:
    ring = DecisionRing(capacity=3)
    for number in range(5):
        ring.add(decision(str(number)))

    assert [entry.id for entry in ring.newest(10)] == ["4", "3", "2"]
    assert ring.find("1") is None
    assert ring.find("request-1") is None
    assert len(ring) == 3


def test_a_decision_that_ended_is_found_as_it_was() -> None:
    ring = DecisionRing(capacity=4)
    ended = decision("0", attempts=[attempt(), attempt(uid="b")])
    ring.add(ended)
    ring.add(decision("1"))
    before = ended.as_json()

    ring.ended(ended)
    ring.ended(ended)
    ring.ended(decision("never added"))

    found = ring.find("0")
    assert found is not ended
    assert found == ring.find("request-0") == ended
    assert found is not None
    assert found.as_json() == before
    assert [entry.id for entry in ring.newest(4)] == ["1", "0"]


def test_no_query_of_the_ring_writes() -> None:
    ring = DecisionRing(capacity=3)
    for number in range(5):
        ring.add(decision(str(number), attempts=[attempt()]))
    ring.ended(ring.newest(1)[0])

    with unchanged(ring):
        found = [ring.find(name) is not None for name in ("3", "4", "request-4", "0")]
        assert found == [True, True, True, False]
        assert len(ring.newest(9)) == len(ring) == 3


def test_a_decision_may_end_after_it_has_left_the_ring() -> None:
    ring = DecisionRing(capacity=1)
    late = decision("0")
    ring.add(late)
    ring.add(decision("1"))

    ring.ended(late)

    assert [entry.id for entry in ring.newest(4)] == ["1"]


def test_the_id_of_a_decision_goes_before_the_same_id_of_a_later_request() -> None:
    ring = DecisionRing()
    for entry in (decision("a"), decision("b", request_id="a")):
        ring.add(entry)
        ring.ended(entry)

    found = ring.find("a")
    assert found is not None
    assert found.id == "a"


def test_a_request_id_that_was_used_twice_finds_the_newer_decision() -> None:
    ring = DecisionRing(capacity=2)
    for number in range(3):
        ring.add(decision(str(number), request_id="same"))

    found = ring.find("same")
    assert found is not None
    assert found.id == "2"


def test_json_shows_the_last_attempt_on_top_and_the_failed_ones_beside_it() -> None:
    shown = decision("1", attempts=[attempt(uid="a"), attempt(uid="b")]).as_json()

    assert shown["uid"] == "b"
    assert shown["retries"] == 1
    assert [entry["uid"] for entry in shown["retried"]] == ["a"]  # type: ignore[attr-defined]  # plain JSON
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
    assert difference_of(attempt(predicted, pending), actual, is_coming=is_coming) == expected


def test_a_load_only_attempt_predicts_nothing() -> None:
    assert difference_of(attempt(precise=False), 64, is_coming=False) == "unknown"
