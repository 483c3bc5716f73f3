"""Numbers of replicas that an operator notes on a Deployment, for the operator that leads after it. Pure.

`replicas.number.with_number` writes them.
"""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.names import FIRST_REPLICAS_ANNOTATION, REPLICAS_ANNOTATION


def first_replicas(workers: Mapping[str, Any]) -> int | None:
    """`spec.replicas` when autoscaling took the number over; None where the spec alone decides."""
    return _noted(workers, FIRST_REPLICAS_ANNOTATION)


def last_set_replicas(workers: Mapping[str, Any]) -> int | None:
    """The last number that an operator set; None where the spec sets it, and of a suspended fleet.

    While victims of a shrink are marked it is the number that the Deployment still has, by any client.
    """
    return _noted(workers, REPLICAS_ANNOTATION)


def _noted(workers: Mapping[str, Any], annotation: str) -> int | None:
    """The number in an annotation; None if there is none of up to five digits: any client may edit it."""
    text = (workers["metadata"].get("annotations") or {}).get(annotation)
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None
