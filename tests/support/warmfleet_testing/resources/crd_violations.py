"""For every constraint of the schema a manifest that breaks it, derived by walking the schema."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_testing.resources.crd_schema import SchemaField, root_schema, spec_fields
from warmfleet_testing.resources.full_manifests import ALL, LOCAL, MINIMAL, Manifest, changed

_WRONG_TYPES: Final[dict[str, Any]] = {
    "string": 7,
    "integer": "seven",
    "boolean": "yes",
    "object": "text",
    "array": "text",
}
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Violation:
    """A manifest that is wrong in one place."""

    constraint: str
    """The field's path and the keyword of the schema, such as `spec.replicas maximum`."""
    manifest: Manifest
    field: str
    """The place that a refusal must name."""
    words: str
    """What its message must match; a regular expression."""


def violations(field: SchemaField, base: Manifest) -> Iterator[Violation]:
    """One for every keyword of the field but its rules.

    Args:
        field: any field below the root.
        base: a valid manifest in which it is set.
    """
    place = tuple(_concrete(field.path, base))
    value = _get(base, place)
    for keyword, wrong, words in _wrong_values(field, value):
        yield Violation(
            f"{field.path} {keyword}",
            _with(base, place, wrong),
            _name(place),
            words,
        )
    for name in field.schema.get("required", ()):
        yield Violation(
            f"{field.path} required {name}",
            _with(base, (*place, name), _MISSING),
            f"{_name(place)}.{name}",
            "Required value|is required",
        )
    if "properties" in field.schema:
        yield Violation(
            f"{field.path} unknown",
            _with(base, (*place, "unknown"), 1),
            f"{_name(place)}.unknown",
            "unknown field",
        )


def spec_violations() -> list[Violation]:
    """All of them below `spec`, and those of the name."""
    fields = spec_fields()
    found = [
        violation
        for field in fields
        for base in [next(base for base in (*ALL.values(), LOCAL) if _has_field(field, base))]
        for violation in violations(field, base)
    ]
    name = root_schema()["properties"]["metadata"]["properties"]["name"]
    for wrong in ("a" * (name["maxLength"] + 1), "Upper", "9a", "a-", "a.b", "a_b"):
        renamed = changed(MINIMAL, lambda manifest, name=wrong: manifest["metadata"].update(name=name))
        found.append(Violation(f"metadata.name {wrong[:5]}", renamed, "metadata.name", "."))
    without_spec = {key: value for key, value in MINIMAL.items() if key != "spec"}
    found.append(Violation("required spec", without_spec, "spec", "Required value"))
    return found


def _has_field(field: SchemaField, base: Manifest) -> bool:
    try:
        _get(base, tuple(_concrete(field.path, base)))
    except (KeyError, IndexError, StopIteration):
        return False
    return True


def _wrong_values(field: SchemaField, value: Any) -> Iterator[tuple[str, Any, str]]:
    schema = field.schema
    kind = schema.get("type")
    yield "type", _WRONG_TYPES.get(kind, True), "must be of type|cannot unmarshal"
    for keyword, wrong, words in _SIMPLE_CONSTRAINTS:
        if keyword in schema:
            yield keyword, wrong(schema[keyword]), words
    if "maxItems" in schema:
        yield "maxItems", _distinct_items(value[0], schema["maxItems"] + 1), "Too many"
    if "maxProperties" in schema:
        many = {f"k{i}": "v" for i in range(schema["maxProperties"] + 1)}
        yield "maxProperties", many, "Too many|must have at most"
    if schema.get("x-kubernetes-list-type") in {"set", "map"}:
        yield "distinct", [value[0], value[0]], "Duplicate value"


_SIMPLE_CONSTRAINTS: Final[tuple[tuple[str, Callable[[Any], Any], str], ...]] = (
    ("enum", lambda allowed: 17 if isinstance(allowed[0], int) else "Nonsense", "Unsupported value"),
    ("minimum", lambda bound: bound - 1, "greater than or equal to"),
    ("maximum", lambda bound: bound + 1, "less than or equal to"),
    ("minLength", lambda bound: "a" * (bound - 1), "at least|shorter"),
    ("maxLength", lambda bound: "1" * (bound + 1), "Too long"),
    ("pattern", lambda _: " ", "should match"),
)


def _distinct_items(item: Any, count: int) -> list[Any]:
    if isinstance(item, Mapping):
        return [{**item, **({"name": f"n{i}"} if "name" in item else {})} for i in range(count)]
    return [f"n{i}" for i in range(count)]


def _concrete(path: str, base: Manifest) -> Iterator[str | int]:
    """`a.b[].c` as keys of this manifest: the first item, the first key of a map."""
    node: Any = base
    for part in re.findall(r"\[\]|\{\}|[^.\[\]{}]+", path):
        key: str | int = part
        if part == "[]":
            key = _first_with(node, path)
        elif part == "{}":
            key = next(iter(node))
        yield key
        node = node[key]


def _first_with(items: list[Any], path: str) -> int:
    """The item that has the field asked for: one variable has a value, another a valueFrom."""
    name = path.rpartition("[].")[2]
    holders = [i for i, item in enumerate(items) if isinstance(item, Mapping) and name in item]
    return holders[0] if holders else 0


def _get(manifest: Manifest, place: tuple[str | int, ...]) -> Any:
    node: Any = manifest
    for key in place:
        node = node[key]
    return node


def _with(manifest: Manifest, place: tuple[str | int, ...], value: Any) -> Manifest:
    changed = copy.deepcopy(manifest)
    parent = _get(changed, place[:-1])
    if value is _MISSING:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return changed


def _name(place: tuple[str | int, ...]) -> str:
    name = ""
    for key in place:
        name += f"[{key}]" if isinstance(key, int) else f".{key}"
    return name.removeprefix(".")
