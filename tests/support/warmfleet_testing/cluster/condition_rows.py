"""Conditions of a ModelDeployment: waiting for them, and reading from tests which ones they wait for."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from warmfleet_contracts.resources.conditions import CONDITIONS, ConditionType
from warmfleet_testing.cluster.operator_process import eventually

Row = tuple[str, str, str]
"""Type, status and reason of a condition."""

ROWS: Final[frozenset[Row]] = frozenset(
    (kind.value, status.value, why.value) for kind, status, why in CONDITIONS
)
CONDITIONS_SECONDS: Final = 30.0


class Readable(Protocol):
    """A namespace that can be asked for its objects."""

    def get(self, *args: str) -> Any:
        """`kubectl get`, decoded."""


def wait_for_conditions(
    fleet: Readable, name: str, *, seconds: float = CONDITIONS_SECONDS, **wanted: str
) -> dict[str, str]:
    """Wait until the conditions are as wanted, all at once, and belong to the current spec.

    Args:
        fleet: the ModelDeployment's namespace.
        name: the ModelDeployment's name.
        seconds: for how long to wait.
        wanted: status and reason by type: `Ready="True Suspended"`.

    Returns:
        All messages, by type.
    """
    seen: dict[str, str] = {}

    def as_wanted() -> dict[str, str] | None:
        resource = fleet.get("modeldeployment", name)
        conditions = resource["status"]["conditions"]
        assert [condition["type"] for condition in conditions] == [kind.value for kind in ConditionType]
        for condition in conditions:
            assert (condition["type"], condition["status"], condition["reason"]) in ROWS
        seen.update(
            {condition["type"]: f"{condition['status']} {condition['reason']}" for condition in conditions}
        )
        current = {condition["observedGeneration"] for condition in conditions}
        if current != {resource["metadata"]["generation"]} or not wanted.items() <= seen.items():
            return None
        return {condition["type"]: condition["message"] for condition in conditions}

    try:
        messages: dict[str, str] = eventually(as_wanted, seconds)
    except AssertionError as error:
        raise AssertionError(f"{name}: wanted {json.dumps(wanted)}, has {json.dumps(seen)}") from error
    return messages


def rows_of(test_file: Path) -> Iterator[tuple[Row, str]]:
    """Every row that a test of the file waits for, with the test's name.

    Read from the text, so all tests count: keywords of `wait_for_conditions`, and three texts in a row that
    any other call gets (`has(name, "Stalled", "True", "ObjectRefused")`).
    """
    for test in ast.parse(test_file.read_text()).body:
        if not (isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_")):
            continue
        for call in ast.walk(test):
            if isinstance(call, ast.Call):
                for row in _rows_of_call(call):
                    yield row, test.name


def _rows_of_call(call: ast.Call) -> Iterator[Row]:
    types = {kind.value for kind in ConditionType}
    for keyword in call.keywords:
        text = _text(keyword.value)
        if keyword.arg in types and text is not None:
            status, _, reason = text.partition(" ")
            yield keyword.arg, status, reason
    texts = [_text(argument) for argument in call.args]
    for kind, status, reason in zip(texts, texts[1:], texts[2:], strict=False):
        if kind in types and status is not None and reason is not None:
            yield kind, status, reason


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
