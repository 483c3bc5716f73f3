"""Kubernetes events for changes of conditions and of the wanted number of replicas. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from warmfleet_contracts.names import FIELD_MANAGER
from warmfleet_contracts.resources.conditions import (
    RELEASE_CONFLICT,
    STALLED_REASONS,
    ConditionType,
    Reason,
)
from warmfleet_operator.objects.digest import digest
from warmfleet_operator.objects.kinds import EVENT, MODEL_DEPLOYMENT
from warmfleet_operator.objects.times import precise_time_of, seconds_of

MAX_NOTE_LENGTH: Final = 1000
DECISION_EVENTS: Final = 5
"""Of one deployment in a minute: stabilization of zero seconds allows a decision at every tick."""
_MINUTE_SECONDS: Final = 60.0
_GOOD_WHEN_FALSE: Final = frozenset({ConditionType.STALLED.value, RELEASE_CONFLICT})
_ANNOUNCED_BY_ANOTHER: Final = {
    ConditionType.READY: frozenset(STALLED_REASONS),
    ConditionType.STALLED: frozenset({Reason.NAME_TAKEN}),
    ConditionType.NAME_ACCEPTED: frozenset[Reason](),
    ConditionType.SCALING_ACTIVE: frozenset[Reason](),
}
"""By condition: reasons with which it changes together with another condition, which has the event."""
_EXPECTED: Final = frozenset(
    {
        Reason.PROGRESSING,
        Reason.FETCHING,
        Reason.WAITING_FOR_UPGRADE_SLOT,
        Reason.FIXED_REPLICAS,
        Reason.SUSPENDED,
        Reason.PAUSED,
        Reason.ADVISORY,
        Reason.ASLEEP,
    }
)
"""Reasons for which a condition is False because the spec asks for it, or for a limited time."""


def changes_to_announce(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Conditions that get an event: their status changed, or the reason of a failure did."""
    old = {condition["type"]: condition for condition in before}
    for condition in after:
        kind = condition["type"]
        if kind not in _ANNOUNCED_BY_ANOTHER or condition["reason"] in _ANNOUNCED_BY_ANOTHER[kind]:
            continue
        previous = old.get(kind)
        # A new deployment has no previous conditions: only a failure gets an event.
        initial_failure = kind != ConditionType.READY and _is_failure(condition)
        if initial_failure if previous is None else _is_announced(previous, condition):
            yield condition


def event_of(
    deployment: Mapping[str, Any], condition: Mapping[str, Any], identity: str, now_seconds: float
) -> dict[str, Any]:
    """The event of one change. An equal change has an equal name, so that it is counted, not repeated."""
    note = f"{condition['type']} is {condition['status']}: {condition['message']}"
    kind = "Warning" if _is_failure(condition) else "Normal"
    return _event(deployment, condition["type"], condition["reason"], note, kind) | _times(
        identity, now_seconds
    )


def decisions_to_announce(before: Mapping[str, Any], after: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The decisions that a status has and the one before it has not, oldest first.

    No more than `DECISION_EVENTS` of them within a minute: the status has the last ones in any case.
    """
    old, new = (_decisions(status) for status in (before, after))
    count = new.index(old[0]) if old and old[0] in new else len(new)
    return [new[position] for position in reversed(range(count)) if not _is_one_too_many(new[position:])]


def _is_one_too_many(decisions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether as many as have an event came within the minute before the first one of these."""
    if len(decisions) <= DECISION_EVENTS:
        return False
    latest, earlier = decisions[0], decisions[DECISION_EVENTS]
    return seconds_of(latest["time"]) - seconds_of(earlier["time"]) < _MINUTE_SECONDS


def _decisions(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (status.get("scaling") or {}).get("decisions") or ()


def decision_event_of(
    deployment: Mapping[str, Any], decision: Mapping[str, Any], identity: str, now_seconds: float
) -> dict[str, Any]:
    """The event of a changed number of wanted replicas."""
    note = f"wants {decision['to']} replicas instead of {decision['from']}: {decision['message']}"
    made = _event(deployment, decision["time"], decision["reason"], note, "Normal")
    return made | _times(identity, now_seconds) | {"action": "Scale"}


def _event(deployment: Mapping[str, Any], subject: str, reason: str, note: str, kind: str) -> dict[str, Any]:
    metadata, note = deployment["metadata"], note[:MAX_NOTE_LENGTH]
    change = digest([metadata["uid"], subject, reason, note])
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{change}"},
        "reportingController": f"warmfleet.dev/{FIELD_MANAGER}",
        "action": "Reconcile",
        "reason": reason,
        "note": note,
        "type": kind,
        "regarding": {
            "apiVersion": MODEL_DEPLOYMENT.api_version,
            "kind": MODEL_DEPLOYMENT.name,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _times(identity: str, now_seconds: float) -> dict[str, str]:
    return {"eventTime": precise_time_of(now_seconds), "reportingInstance": identity[:128]}


def _is_announced(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if before["status"] != after["status"]:
        return True
    if before["reason"] == after["reason"]:
        return False
    # While a deployment becomes ready, its reason changes several times.
    is_ready = after["type"] == ConditionType.READY
    return after["reason"] == Reason.ASLEEP if is_ready else _is_failure(after)


def _is_failure(condition: Mapping[str, Any]) -> bool:
    good = "False" if condition["type"] in _GOOD_WHEN_FALSE else "True"
    return bool(condition["status"] != good and condition["reason"] not in _EXPECTED)
