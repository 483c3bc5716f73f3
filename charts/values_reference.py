"""Derived from values.yaml: the JSON schema that Helm enforces, and the table of the documentation.

`python charts/values_reference.py` writes both; `--check` only compares, exit code 1 when one is behind.

Above each value stands its description as comment lines, and, where its default is not enough, one
line `# @schema {...}` with JSON Schema keywords as a YAML flow mapping. The type is that of the default. A
mapping with values of its own is closed, so that a misspelt value is an error; an empty one is open unless
@schema adds to it.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "warmfleet"
VALUES: Final = CHART / "values.yaml"
SCHEMA: Final = CHART / "values.schema.json"
TABLE: Final = Path(__file__).parent.parent / "docs" / "reference" / "chart.md"
BEGIN: Final = "<!-- values: made by `make chart` -->"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(.*)$")
_COMMENT: Final = re.compile(r"^ *# ?(.*)$")
_KEYWORDS: Final = "@schema "
_TYPES: Final = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Value:
    """One key of values.yaml."""

    path: tuple[str, ...]
    default: Any
    description: str
    keywords: dict[str, Any]
    """JSON Schema keywords beyond the type."""

    @property
    def is_group(self) -> bool:
        """Whether the keys below it are described themselves."""
        return (
            isinstance(self.default, dict)
            and bool(self.default)
            and "additionalProperties" not in self.keywords
        )


def read_values(text: str) -> tuple[Value, ...]:
    """Every key that the comments describe, in order.

    Raises:
        ValueError: a key that is not inside a described default has no description.
    """
    defaults = yaml.safe_load(text)
    return tuple(_values(text.splitlines(), defaults))


def _values(lines: Sequence[str], defaults: dict[str, Any]) -> Iterator[Value]:
    path: list[tuple[int, str]] = []
    comments: list[str] = []
    inside: int | None = None  # indentation of an open mapping, whose keys are data
    for line in lines:
        comment = _COMMENT.match(line)
        if comment:
            comments.append(comment[1])
            continue
        key = _KEY.match(line)
        if key is None:
            if not line.strip():
                comments = []  # a paragraph of its own describes no value
            continue
        indent = len(key[1])
        if inside is not None and indent > inside:
            continue
        path = [step for step in path if step[0] < indent] + [(indent, key[2])]
        names = tuple(name for _, name in path)
        value = _value(names, _at(defaults, names), comments)
        comments = []
        inside = None if value.is_group or not isinstance(value.default, dict) else indent
        yield value


def _value(path: tuple[str, ...], default: Any, comments: Sequence[str]) -> Value:
    description = " ".join(line for line in comments if not line.startswith(_KEYWORDS))
    keywords = [line.removeprefix(_KEYWORDS) for line in comments if line.startswith(_KEYWORDS)]
    if not description:
        raise ValueError(f"values.yaml: {'.'.join(path)} has no description")
    return Value(path, default, description, yaml.safe_load(keywords[0]) if keywords else {})


def _at(defaults: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        defaults = defaults[name]
    return defaults


def schema_of(values: Sequence[Value]) -> dict[str, Any]:
    """The JSON schema of the whole file."""
    root: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "Values of the warmfleet chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": {"type": "object", "description": "Helm's own; not used."}},
    }
    groups = {(): root}
    for value in values:
        entry: dict[str, Any] = {"description": value.description, "type": _TYPES[type(value.default)]}
        if value.is_group:
            entry |= {"additionalProperties": False, "properties": {}}
            groups[value.path] = entry
        else:
            entry["default"] = value.default
        groups[value.path[:-1]]["properties"][value.path[-1]] = entry | value.keywords
    return root


def table_of(values: Sequence[Value]) -> str:
    """All values as a table in Markdown."""
    rows = [
        f"| `{'.'.join(value.path)}` | {_default(value.default)} | {_cell(value)} |"
        for value in values
        if not value.is_group
    ]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _default(value: object) -> str:
    return f"`{json.dumps(value)}`" if value != "" else "empty"


def _cell(value: Value) -> str:
    allowed = value.keywords.get("enum")
    text = value.description.replace("|", "\\|")
    return f"{text} One of {', '.join(allowed)}." if allowed else text


def rendered(values: Sequence[Value]) -> dict[Path, str]:
    """Content of every file that is made from values.yaml."""
    head = TABLE.read_text(encoding="utf-8").partition(BEGIN)[0]
    return {
        SCHEMA: json.dumps(schema_of(values), indent=2) + "\n",
        TABLE: f"{head}{BEGIN}\n{table_of(values)}",
    }


def main(arguments: Sequence[str]) -> int:
    """Write or compare; returns the exit code."""
    files = rendered(read_values(VALUES.read_text(encoding="utf-8")))
    behind = [
        path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in behind:
        if "--check" in arguments:
            print(f"{path.name} is behind values.yaml: run `make chart`")
        else:
            path.write_text(files[path], encoding="utf-8")
    return int(bool(behind) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
