"""Kubernetes events: one when a condition that people wait for turns, none for what goes as usual."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from warmfleet_contracts.conditions import ConditionType
from warmfleet_contracts.names import FIELD_MANAGER
from warmfleet_operator.kinds import EVENT, MODEL_DEPLOYMENT
from warmfleet_operator.rollouts import digest
from warmfleet_operator.times import precise_time_of

MAX_NOTE_LENGTH: Final = 1000
_ANNOUNCED: Final = (ConditionType.READY, ConditionType.STALLED, ConditionType.NAME_ACCEPTED)
_GOOD_WHEN_FALSE: Final = frozenset({ConditionType.STALLED})


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
        if previous is None:
            # At the first sight of a deployment nothing has turned; only trouble is news.
            if kind == ConditionType.READY or not _is_bad(condition):
                continue
        elif previous["status"] == condition["status"] and (
            previous["reason"] == condition["reason"] or not _is_bad(condition)
        ):
            continue
        elif kind == ConditionType.READY and previous["status"] == condition["status"]:
            continue  # on the way to readiness reasons follow each other
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


def _is_bad(condition: Mapping[str, Any]) -> bool:
    good = "False" if condition["type"] in _GOOD_WHEN_FALSE else "True"
    return bool(condition["status"] != good)
