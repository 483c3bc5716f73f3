"""Kubernetes quantities: any (`500m`, `2Gi`, `1e3`), of memory as whole bytes, of CPU as cores."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

from warmfleet_contracts.errors import QuantityError

_SCALES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
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
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,4})?", re.ASCII
)
# As the CustomResourceDefinition restricts them.
_BYTES: Final = re.compile(
    r"(?P<number>\d{1,19}(\.\d{0,9})?|\.\d{1,9})(?P<suffix>[kMGTPE]|[KMGTPE]i|[eE][+]?\d{1,2})?", re.ASCII
)
_CORES: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{0,9})?|\.\d{1,9})(?P<suffix>m?)", re.ASCII)
_MAX_BYTES: Final = 2**63 - 1


def parse_quantity(quantity: object) -> Decimal:
    """The number of base units (cores, bytes, pieces): `500m` is 0.5, `2Gi` is 2147483648.

    Args:
        quantity: text or number, as a manifest may hold either.

    Raises:
        QuantityError: not a quantity.
    """
    amount = _amount(_QUANTITY, quantity)
    if amount is None:
        raise QuantityError(f"{str(quantity)[:40]!r} is no quantity")
    return amount


def parse_bytes(quantity: object) -> int:
    """Whole bytes of a quantity as the API server reads it.

    Raises:
        ValueError: not a quantity of bytes, a fraction of a byte, or beyond 64 bits.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, (int, str)):
        raise ValueError("must be a quantity such as 512Mi")  # noqa: TRY004 - pydantic reports ValueError
    size = _amount(_BYTES, quantity)
    if size is None:
        raise ValueError(
            f"{str(quantity)[:40]!r} is not a quantity of bytes; "
            "write a number and Ki, Mi or Gi, such as 512Mi"
        )
    if size > _MAX_BYTES:
        raise ValueError(f"{str(quantity)!r} is more bytes than 64 bits can count")
    if size != int(size):
        raise ValueError(f"{str(quantity)!r} is not a whole number of bytes")
    return int(size)


def format_bytes(size_bytes: int) -> str:
    """The shortest exact quantity with a binary suffix: 536870912 is `512Mi`, 1000 is `1000`."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if size_bytes and size_bytes % int(_SCALES[suffix]) == 0:
            return f"{size_bytes // int(_SCALES[suffix])}{suffix}"
    return str(size_bytes)


Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]
"""A field that is a quantity in the manifest and an int of bytes in the program."""


def parse_cores(quantity: object) -> Decimal:
    """CPU cores of a quantity as the API server reads it: `1500m` and `1.5` are 1.5.

    Raises:
        ValueError: not a quantity of cores.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, (int, float, str)):
        raise ValueError("must be a quantity such as 1500m")  # noqa: TRY004 - pydantic reports ValueError
    cores = _amount(_CORES, quantity)
    if cores is None:
        raise ValueError(f"{str(quantity)[:40]!r} is not a quantity of cores, such as 2 or 1500m")
    return cores


def _amount(grammar: re.Pattern[str], quantity: object) -> Decimal | None:
    """None for what the grammar does not match."""
    match = grammar.fullmatch(str(quantity))
    if match is None:
        return None
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    scale = _SCALES.get(suffix)
    return number.scaleb(int(suffix[1:])) if scale is None else number * scale
