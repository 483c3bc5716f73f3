"""Kubernetes quantities: `500m`, `2Gi`, `1e3`."""

import math
from decimal import Decimal, InvalidOperation
from typing import Final

from warmfleet_contracts.errors import WarmfleetError

_SUFFIXES: Final = {
    **{
        suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
}


class QuantityError(WarmfleetError):
    """A text is no Kubernetes quantity."""


def parse_quantity(text: str) -> Decimal:
    """The number that a quantity stands for, in base units (cores, bytes, pieces)."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix):
            return _number(text.removesuffix(suffix), text) * _SUFFIXES[suffix]
    return _number(text, text)


def in_units(text: str, divisor: str) -> int:
    """How many `divisor`s a quantity holds, rounded up, as the downward API gives it."""
    unit = parse_quantity(divisor)
    if unit <= 0:  # Kubernetes reads "0" as the default divisor
        unit = Decimal(1)
    return math.ceil(parse_quantity(text) / unit)


def _number(digits: str, text: str) -> Decimal:
    try:
        number = Decimal(digits)
    except InvalidOperation as error:
        raise QuantityError(f"{text!r} is no quantity") from error
    if not number.is_finite() or any(character.isspace() for character in text):
        raise QuantityError(f"{text!r} is no quantity")
    return number
