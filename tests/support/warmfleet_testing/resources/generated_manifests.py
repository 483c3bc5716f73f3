"""Manifests drawn from the schema: every field right by itself, not always right together."""

import string
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from warmfleet_contracts.names import API_VERSION, KIND
from warmfleet_testing.resources.crd_schema import Schema, root_schema
from warmfleet_testing.resources.full_manifests import Manifest

_TEXT: Final = st.characters(exclude_categories=["Cs"])
_SCALARS: Final = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(_TEXT, max_size=8)
_OPAQUE: Final = st.dictionaries(
    st.text(string.ascii_letters, min_size=1, max_size=8),
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(_TEXT, max_size=4), inner),
        max_leaves=4,
    ),
    max_size=4,
)
_UNIONS: Final[dict[str, tuple[str, ...]]] = {
    "spec.model.source": ("catalog", "huggingFace", "image", "persistentVolumeClaim", "localPath"),
    "spec.model.cache": ("emptyDir", "persistentVolumeClaim"),
    "spec.kvCache": ("size", "deviceMemoryPercent"),
}
_USUAL_QUANTITIES: Final = ("512Mi", "1.5Gi", "1e9", ".5Gi", "2G", "1.250k", "100000000k", "1.0001Gi", "1Pi")
_USUAL_NAMES: Final = ("A", "B", "WARMFLEET_HOME", "WARMFLEET")


def manifests() -> st.SearchStrategy[Manifest]:
    """Whole ModelDeployments; about half of them break a rule between fields."""
    spec = _object(root_schema()["properties"]["spec"], "spec")
    return spec.map(
        lambda drawn: {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "generated"},
            "spec": drawn,
        }
    )


def _value(schema: Schema, path: str) -> st.SearchStrategy[Any]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return _OPAQUE
    if schema.get("x-kubernetes-int-or-string"):
        pattern = schema["pattern"].replace("[0-9]{1,19}", "[0-9]{1,5}").replace("{0,9}", "{0,3}")
        odd = st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="ascii"))
        right = st.sampled_from(_USUAL_QUANTITIES) | st.integers(2**20, 2**50)
        return st.one_of(right, right, right, odd | st.integers(0, 2**51))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            least, most = schema["minimum"], schema["maximum"]
            return st.sampled_from((least, most)) | st.integers(least, min(most, least + 9))
        case "array":
            return st.lists(_value(schema["items"], f"{path}[]"), max_size=3)
        case "string":
            return _string(schema, path)
    if "properties" in schema:
        return _object(schema, path)
    values = _value(schema["additionalProperties"], f"{path}{{}}")
    return st.dictionaries(st.sampled_from(("zone", "example.com/pool", "a")), values, max_size=2)


def _string(schema: Schema, path: str) -> st.SearchStrategy[str]:
    if path == "spec.engine.env[].name":
        return st.sampled_from(_USUAL_NAMES)
    if "pattern" not in schema:
        return st.text(_TEXT, min_size=schema.get("minLength", 0), max_size=16) | st.sampled_from(
            ("a/b", "/a", "../a", "a..b")
        )
    ascii_only = st.characters(codec="ascii")
    return st.from_regex(schema["pattern"], fullmatch=True, alphabet=ascii_only).filter(
        lambda text: len(text) <= schema["maxLength"]
    )


def _object(schema: Schema, path: str) -> st.SearchStrategy[dict[str, Any]]:
    required = set(schema.get("required", ()))
    members = {
        name: _value(member, f"{path}.{name}")
        for name, member in schema["properties"].items()
        if path != "spec.model.source" or name != "localPath"
    }
    union = [name for name in _UNIONS.get(path, ()) if name in members]
    plain = st.fixed_dictionaries(
        {name: members[name] for name in members if name in required},
        optional={
            name: members[name] | st.none() for name in members if name not in required and name not in union
        },
    )
    if not union:
        return plain
    # The first more often: it asks for nothing beside itself.
    one = st.one_of(*(st.fixed_dictionaries({name: members[name]}) for name in (*union[:1] * 3, *union)))
    several = st.fixed_dictionaries({}, optional={name: members[name] | st.none() for name in union})
    chosen = st.one_of(*[one] * 9, several)
    return st.builds(_merged, plain, chosen)


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {**first, **second}
