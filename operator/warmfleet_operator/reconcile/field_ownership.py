"""Whether an object already is what we want, as far as we want anything.

The API server adds defaults, other controllers and users add labels and list items, and quantities come back
in canonical form: none of it is a difference. What we name has to be there.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

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
"""Lists in which server-side apply keeps the items of others; all others are replaced as a whole."""

_QUANTITIES: Final = frozenset({"limits", "overhead", "requests", "sizeLimit", "storage"})
_SCALES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def covers(desired: Any, observed: Any, field: str = "", *, quantity: bool = False) -> bool:
    """Whether everything in `desired` stands in `observed`.

    Args:
        desired: what is applied.
        observed: what the API server has.
        field: name of the field that holds them.
        quantity: whether texts in it are quantities.
    """
    quantity = quantity or field in _QUANTITIES
    if isinstance(desired, Mapping):
        if observed is None:
            return all(covers(value, None, name) for name, value in desired.items())
        return isinstance(observed, Mapping) and all(
            covers(value, observed.get(name), name, quantity=quantity) for name, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        return _covers_list(desired, observed or (), field)
    if quantity:
        return _same_quantity(desired, observed)
    # The API server leaves out what is empty, false or zero.
    return bool(desired == observed) or (not desired and observed is None)


def _covers_list(desired: Sequence[Any], observed: Any, field: str) -> bool:
    if not isinstance(observed, list | tuple):
        return False
    if field in _KEYED_LISTS:
        return all(any(covers(item, other) for other in observed) for item in desired)
    return len(desired) == len(observed) and all(
        covers(item, other) for item, other in zip(desired, observed, strict=True)
    )


def _same_quantity(desired: object, observed: object) -> bool:
    try:
        return _amount(desired) == _amount(observed)
    except InvalidOperation:
        return desired == observed


def _amount(quantity: object) -> Decimal:
    text = str(quantity)
    for length in (2, 1):
        scale = _SCALES.get(text[-length:])
        if scale is not None:
            return Decimal(text[:-length]) * scale
    return Decimal(text)
