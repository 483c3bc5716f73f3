"""Compares the fields that the operator owns in an object with their values in the cluster.

The operator owns the fields that it applies. Defaults that the API server adds, labels and list items of
other field managers, and quantities in canonical form (`1Gi` for `1024Mi`) are not differences.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmfleet_contracts.errors import QuantityError
from warmfleet_contracts.resources.quantities import parse_quantity

_KEYED_LISTS: Final = frozenset(
    {
        "containers",
        "env",
        "ephemeralContainers",
        "imagePullSecrets",
        "initContainers",
        "ownerReferences",
        "ports",
        "topologySpreadConstraints",
        "volumeMounts",
        "volumes",
    }
)
"""Lists in which server-side apply keeps items of other field managers; it replaces all other lists."""

_QUANTITIES: Final = frozenset({"limits", "overhead", "requests", "sizeLimit", "storage"})


def owned_fields_match(desired: Any, existing: Any, field: str = "", *, quantity: bool = False) -> bool:
    """Whether every field of `desired` has the same value in `existing`.

    Args:
        desired: what the operator applies.
        existing: what the API server holds.
        field: name of the field that holds both.
        quantity: whether texts in it are quantities.
    """
    quantity = quantity or field in _QUANTITIES
    if isinstance(desired, Mapping):
        if existing is None:
            return all(owned_fields_match(value, None, name) for name, value in desired.items())
        return isinstance(existing, Mapping) and all(
            owned_fields_match(value, existing.get(name), name, quantity=quantity)
            for name, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        return _owned_items_match(desired, existing or (), field)
    if quantity:
        return _same_quantity(desired, existing)
    # The API server leaves out what is empty, false or zero.
    return bool(desired == existing) or (not desired and existing is None)


def _owned_items_match(desired: Sequence[Any], existing: Any, field: str) -> bool:
    if not isinstance(existing, list | tuple):
        return False
    if field in _KEYED_LISTS:
        return all(any(owned_fields_match(item, other) for other in existing) for item in desired)
    return len(desired) == len(existing) and all(
        owned_fields_match(item, other) for item, other in zip(desired, existing, strict=True)
    )


def _same_quantity(desired: object, existing: object) -> bool:
    try:
        return parse_quantity(desired) == parse_quantity(existing)
    except QuantityError:
        return desired == existing
