"""One parser of Kubernetes quantities for the operator, the devcluster and manifests."""

from decimal import Decimal

import pytest

from warmfleet_contracts.errors import QuantityError
from warmfleet_contracts.resources.quantities import format_bytes, parse_bytes, parse_cores, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        ("500m", "0.5"),
        ("2Gi", str(2 << 30)),
        ("1k", "1000"),
        ("1e3", "1000"),
        ("1.5Mi", "1572864"),
        ("1E", "1e18"),
        ("1E3", "1000"),
        ("250u", "0.00025"),
        ("7n", "7e-9"),
        ("-1Ki", "-1024"),
        ("+.5", "0.5"),
        (2, "2"),
        (0.5, "0.5"),
    ],
)
def test_quantities_are_numbers(text, number):
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize(
    "text", ["", "x", "1X", "Ki", "nan", "1 Gi", "1e3Ki", "Infinity", "1_000", None, True]
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(QuantityError, match="is no quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("size_bytes", [1, 1024, 3 * 2**29, 10**12])
def test_a_quantity_means_the_same_number_to_both_parsers(size_bytes: int) -> None:
    assert parse_quantity(format_bytes(size_bytes)) == parse_bytes(str(size_bytes)) == size_bytes


@pytest.mark.parametrize(("quantity", "cores"), [("1500m", "1.5"), ("2", "2"), (0.5, "0.5")])
def test_cores_are_quantities(quantity: object, cores: str) -> None:
    assert parse_cores(quantity) == parse_quantity(quantity) == Decimal(cores)
