"""docs/reference/modeldeployment.md, made from the CustomResourceDefinition, which is the one source.

`python crds/modeldeployment_reference.py` writes the tables between the page's two markers; the prose
outside them is written by hand. A test compares.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from warmfleet_testing.documents.generated_page import with_tables

CRD: Final = Path(__file__).parent / "warmfleet.dev_modeldeployments.yaml"
PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "modeldeployment.md"

Schema = Mapping[str, Any]


def tables(crd: Schema) -> str:
    """Every field of spec and status, and every rule between fields, as Markdown."""
    (version,) = crd["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    spec, status = root["properties"]["spec"], root["properties"]["status"]
    parts = [
        "## Fields of spec",
        "| field | type | default | meaning |\n|---|---|---|---|",
        *_rows(spec, "spec", is_spec=True),
        "",
        "## Rules between fields",
        "| field | message of the API server |\n|---|---|",
        *_rules(root, ""),
        "",
        "## Fields of status",
        "| field | type | meaning |\n|---|---|---|",
        *_rows(status, "status", is_spec=False),
        "",
        "## Columns of kubectl get",
        "| column | field | meaning |\n|---|---|---|",
        *_columns(version["additionalPrinterColumns"]),
    ]
    return "\n".join(parts) + "\n"


def _rows(schema: Schema, path: str, *, is_spec: bool) -> Iterator[str]:
    for name, member in schema.get("properties", {}).items():
        field = f"{path}.{name}"
        cells = [f"`{field.partition('.')[2]}`", _type(member)]
        if is_spec:
            cells.append("**required**" if name in schema.get("required", ()) else _default(member))
        yield f"| {' | '.join([*cells, _cell(member['description'])])} |"
        yield from _rows(member, field, is_spec=is_spec)
        yield from _rows(member.get("items", {}), f"{field}[]", is_spec=is_spec)


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind: str = schema["type"]
    if kind == "object":
        return _object_type(schema)
    if {"minimum", "maximum"} <= schema.keys():
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    if kind == "array":
        return f"list, at most {schema['maxItems']}"
    return kind + (f", at most {schema['maxLength']}" if "maxLength" in schema else "")


def _object_type(schema: Schema) -> str:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "Kubernetes object"
    return "object" if "properties" in schema else f"map, at most {schema['maxProperties']}"


def _default(schema: Schema) -> str:
    # An object's default only lets those of its members apply.
    if "default" not in schema or schema["type"] == "object":
        return ""
    return f"`{json.dumps(schema['default']).strip(chr(34))}`"


def _rules(schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        field = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
        yield f"| `{field}` | {_cell(rule['message'])} |"
    for name, member in schema.get("properties", {}).items():
        yield from _rules(member, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _columns(columns: list[Schema]) -> Iterator[str]:
    for column in columns:
        wide = " (`-o wide`)" if column.get("priority", 0) else ""
        yield f"| {column['name']}{wide} | `{column['jsonPath']}` | {_cell(column['description'])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_tables(PAGE.read_text(), tables(yaml.safe_load(CRD.read_text()))))
    sys.stdout.write(f"{PAGE.name} is up to date\n")


if __name__ == "__main__":
    main()
