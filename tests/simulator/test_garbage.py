"""The collector runs seldom while a simulation runs, and afterwards as before."""

import gc

import pytest

from warmfleet_simulator.garbage import seldom_collected


@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_collector_is_as_before_when_a_simulation_ends_or_fails(
    monkeypatch: pytest.MonkeyPatch, *, is_frozen: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: int(is_frozen))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    before = gc.get_threshold()

    with pytest.raises(ZeroDivisionError), seldom_collected():
        assert gc.get_threshold() > before
        raise ZeroDivisionError

    assert gc.get_threshold() == before
    assert calls == ([] if is_frozen else ["freeze", "unfreeze"])
