"""Kubernetes events: one when a condition that people wait for turns, none for what goes as usual."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from warmfleet_contracts.names import FIELD_MANAGER
from warmfleet_contracts.resources.conditions import STALLED_REASONS, ConditionType, Reason
from warmfleet_operator.objects.kinds import EVENT, MODEL_DEPLOYMENT
from warmfleet_operator.objects.rollouts import digest
from warmfleet_operator.objects.times import precise_time_of

MAX_NOTE_LENGTH: Final = 1000
_ANNOUNCED: Final = (ConditionType.READY, ConditionType.STALLED, ConditionType.NAME_ACCEPTED)
_GOOD_WHEN_FALSE: Final = frozenset({ConditionType.STALLED})
_SAID_ELSEWHERE: Final = frozenset({*STALLED_REASONS, Reason.NAME_TAKEN})
"""Reasons for which Ready turns false together with another condition that has an event of its own."""
_AS_ASKED: Final = frozenset(
    {
        Reason.SUSPENDED,
        Reason.NO_REPLICAS,
        Reason.PROGRESSING,
        Reason.FETCHING,
        Reason.WAITING_FOR_UPGRADE_SLOT,
    }
)
"""Reasons for which Ready is false because somebody wants it so, or for a while."""


def turned(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Conditions worth an event: their status turned, or something is wrong for another reason."""
    old = {condition["type"]: condition for condition in before}
    for condition in after:
        kind = condition["type"]
        if kind not in {announced.value for announced in _ANNOUNCED}:
            continue
        previous = old.get(kind)
        # At the first sight of a deployment nothing has turned; only trouble is news.
        first_news = kind != ConditionType.READY and _is_bad(condition)
        if first_news if previous is None else _has_turned(previous, condition):
            yield condition


def event_of(
    deployment: Mapping[str, Any], condition: Mapping[str, Any], identity: str, now_seconds: float
) -> dict[str, Any]:
    """The event of one turn. The same turn again has the same name, and is counted and not repeated."""
    metadata = deployment["metadata"]
    note = f"{condition['type']} is {condition['status']}: {condition['message']}"[:MAX_NOTE_LENGTH]
    turn = digest([metadata["uid"], condition["type"], condition["reason"], note])
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{turn}"},
        "eventTime": precise_time_of(now_seconds),
        "reportingController": f"warmfleet.dev/{FIELD_MANAGER}",
        "reportingInstance": identity[:128],
        "action": "Reconcile",
        "reason": condition["reason"],
        "note": note,
        "type": "Warning" if _is_bad(condition) else "Normal",
        "regarding": {
            "apiVersion": MODEL_DEPLOYMENT.api_version,
            "kind": MODEL_DEPLOYMENT.name,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _has_turned(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    is_ready = after["type"] == ConditionType.READY
    if before["status"] != after["status"]:
        return not (is_ready and after["reason"] in _SAID_ELSEWHERE)
    # On the way to readiness reasons follow each other.
    return not is_ready and before["reason"] != after["reason"] and _is_bad(after)


def _is_bad(condition: Mapping[str, Any]) -> bool:
    good = "False" if condition["type"] in _GOOD_WHEN_FALSE else "True"
    return bool(condition["status"] != good and condition["reason"] not in _AS_ASKED)
