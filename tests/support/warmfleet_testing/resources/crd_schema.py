"""The CustomResourceDefinition as a list of fields, for tests that walk it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

CRD_PATH: Final = Path(__file__).parents[4] / "crds" / "warmfleet.dev_modeldeployments.yaml"

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One node of a schema."""

    path: str
    """As an error of the API server names it, with `[]` for every item and `{}` for every value of a map."""
    schema: Schema
    required: bool


@cache
def load_crd() -> dict[str, Any]:
    """The whole definition, as `kubectl apply` sends it."""
    crd: dict[str, Any] = yaml.safe_load(CRD_PATH.read_text())
    return crd


def crd_version() -> dict[str, Any]:
    """Its only version: schema, columns, subresources."""
    (version,) = load_crd()["spec"]["versions"]
    return dict(version)


def root_schema() -> Schema:
    schema: Schema = crd_version()["schema"]["openAPIV3Schema"]
    return schema


def spec_fields() -> list[SchemaField]:
    """Every field below `spec`, itself included, parents first."""
    return list(walk(root_schema()["properties"]["spec"], "spec", required=True))


def status_fields() -> list[SchemaField]:
    """Every field below `status`, itself included, parents first."""
    return list(walk(root_schema()["properties"]["status"], "status", required=False))


def walk(schema: Schema, path: str, *, required: bool) -> Iterator[SchemaField]:
    """The node itself, then what is below it."""
    yield SchemaField(path, schema, required)
    for name, member in schema.get("properties", {}).items():
        yield from walk(member, f"{path}.{name}", required=name in schema.get("required", ()))
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]", required=False)
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{path}{{}}", required=False)
