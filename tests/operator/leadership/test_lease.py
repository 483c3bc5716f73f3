"""Leader election: its pure parts. The lease is tested at a real API server, too."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.errors import NotLeadingError
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.leadership.lease import LastChange, held_by, may_acquire

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
NAME = ("warmfleet", "warmfleet-operator")


def test_a_fence_opens_for_a_time_and_closes_by_itself() -> None:
    now = [0.0]
    fence = Fence(lambda: now[0])
    with pytest.raises(NotLeadingError):
        fence.require()

    fence.extend(10.0)
    now[0] = 9.99
    fence.require()
    now[0] = 10.0
    with pytest.raises(NotLeadingError):
        fence.require()


def test_a_dropped_fence_is_closed() -> None:
    fence = Fence(lambda: 0.0)
    fence.extend(10.0)
    fence.drop()

    assert not fence.leading


def test_a_lease_that_its_holder_renews_cannot_be_acquired() -> None:
    lease = held_by("a", None, NAME, 15, WHEN)

    assert may_acquire(lease, "a", LastChange("1", 0.0), 1.0)
    assert not may_acquire(lease, "b", LastChange("1", 0.0), 15.0)
    assert may_acquire(lease, "b", LastChange("1", 0.0), 15.1)


def test_a_released_lease_is_free_at_once() -> None:
    lease = held_by("a", None, NAME, 15, WHEN)
    lease["spec"]["holderIdentity"] = ""

    assert may_acquire(lease, "b", LastChange("1", 0.0), 0.0)


def test_transitions_count_changes_of_the_holder() -> None:
    first = held_by("a", None, NAME, 15, WHEN)
    renewed = held_by("a", first, NAME, 15, WHEN)
    taken = held_by("b", renewed, NAME, 15, WHEN)

    assert [item["spec"]["leaseTransitions"] for item in (first, renewed, taken)] == [0, 0, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 6)), min_size=1, max_size=80))
def test_two_replicas_never_write_at_once(attempts) -> None:
    """Any order and any pauses: each attempt of a replica is atomic at the API server, as replace is."""
    now, lease, version = 0.0, None, 0
    fences = {name: Fence(lambda: now) for name in "abc"}
    seen = {name: LastChange("", 0.0) for name in "abc"}
    for name, pause in attempts:
        now += pause
        assert sum(fence.leading for fence in fences.values()) <= 1
        if lease is not None:
            if seen[name].resource_version != str(version):
                seen[name] = LastChange(str(version), now)
            if not may_acquire(lease, name, seen[name], now):
                continue
        lease, version = held_by(name, lease, NAME, 15, WHEN), version + 1
        fences[name].extend(now + 10)
        assert sum(fence.leading for fence in fences.values()) == 1
