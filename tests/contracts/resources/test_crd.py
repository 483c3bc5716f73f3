"""The schema in crds/ against resources.py, field by field: what one checks, the other checks alike."""

import json
import re
from typing import Any

import pytest
from modeldeployment_reference import PAGE, tables
from pydantic import ValidationError

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from warmfleet_contracts.resources.conditions import ConditionStatus, ConditionType
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_testing.documents.generated_page import with_tables
from warmfleet_testing.resources.crd_schema import (
    Schema,
    SchemaField,
    crd_version,
    load_crd,
    root_schema,
    spec_fields,
    status_fields,
    walk,
)
from warmfleet_testing.resources.crd_violations import Violation, spec_violations

ALIKE = (
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "maxItems",
    "maxProperties",
)
UNITS = {
    "Tokens": "tokens",
    "Seconds": "seconds",
    "Milliseconds": "milliseconds",
    "Percent": "percent",
    "Bytes": "bytes",
    "size": "bytes",
    "Size": "bytes",
    "sizeLimit": "bytes",
}


def _resource_fields() -> dict[str, SchemaField]:
    document = ModelDeployment.model_json_schema(by_alias=True)
    spec = _plain(document["properties"]["spec"], document["$defs"])
    return {field.path: field for field in walk(spec, "spec", required=True)}


def _plain(schema: Schema, definitions: Schema) -> dict[str, Any]:
    """pydantic's JSON Schema without references, null alternatives and titles, as a CRD would write it."""
    merged = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf", "title"}}
    if "$ref" in schema:
        merged = {**_plain(definitions[schema["$ref"].rpartition("/")[2]], definitions), **merged}
    for alternative in schema.get("anyOf", ()):
        if alternative != {"type": "null"}:
            merged = {**_plain(alternative, definitions), **merged}
    if "const" in merged:
        merged["enum"] = [merged.pop("const")]
    if "properties" in merged:
        merged["properties"] = {
            name: _plain(member, definitions) for name, member in merged["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(merged.get(key), dict):
            merged[key] = _plain(merged[key], definitions)
    return merged


RESOURCE_FIELDS = _resource_fields()
CRD_FIELDS = {field.path: field for field in spec_fields()}


def test_both_have_exactly_the_same_fields() -> None:
    assert sorted(CRD_FIELDS) == sorted(RESOURCE_FIELDS)
    assert len(CRD_FIELDS) > 70


def _constraints(schema: Schema) -> dict[str, Any]:
    found = {key: schema[key] for key in ALIKE if key in schema}
    if "enum" in found:
        found["enum"] = sorted(found["enum"])
    return found


@pytest.mark.parametrize("path", sorted(CRD_FIELDS))
def test_a_field_has_the_same_type_and_bounds_in_both(path: str) -> None:
    schema, resource = CRD_FIELDS[path].schema, RESOURCE_FIELDS[path].schema

    if schema.get("x-kubernetes-int-or-string"):
        assert resource["type"] == "integer"
    else:
        assert _constraints(schema) == _constraints(resource)
    assert CRD_FIELDS[path].required == RESOURCE_FIELDS[path].required


QUANTITIES = (
    "spec.accelerator.sharedMemorySize",
    "spec.kvCache.size",
    "spec.model.cache.emptyDir.sizeLimit",
)


def test_every_quantity_is_probed() -> None:
    found = {path for path, field in CRD_FIELDS.items() if field.schema.get("x-kubernetes-int-or-string")}

    assert sorted(found) == sorted(QUANTITIES)


@pytest.mark.parametrize("path", QUANTITIES)
def test_a_quantity_has_the_same_range_in_both(path: str) -> None:
    (rule,) = CRD_FIELDS[path].schema["x-kubernetes-validations"]
    bounds = re.fullmatch(r".*?>= (\d+)\.0 .*?<= (\d+)\.0 .*", rule["rule"])
    assert bounds is not None
    least, most = int(bounds[1]), int(bounds[2])

    accepted = [size_bytes for size_bytes in (least - 1, least, most, most + 1) if _accepts(path, size_bytes)]

    assert accepted == [least, most]


def _accepts(path: str, value: object) -> bool:
    manifest: dict[str, Any] = _minimal()
    *parents, name = path.split(".")
    node = manifest
    for parent in parents:
        node = node.setdefault(parent, {})
    node[name] = value
    try:
        ModelDeployment.model_validate(manifest)
    except ValidationError:
        return False
    return True


def _minimal() -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "a"},
        "spec": {"model": {"source": {"catalog": {"name": "a"}}}, "kvCache": {"size": "1Mi"}},
    }


@pytest.mark.parametrize("path", sorted(CRD_FIELDS))
def test_a_field_has_the_same_default_in_both(path: str) -> None:
    """None, "" and () mean absent: only real defaults are written into the stored object."""
    given = CRD_FIELDS[path].schema.get("default")
    expected = RESOURCE_FIELDS[path].schema.get("default")

    if CRD_FIELDS[path].schema.get("properties") and given is not None:
        members = CRD_FIELDS[path].schema["properties"]
        assert not CRD_FIELDS[path].required
        assert all(members[name]["default"] == value for name, value in given.items())
    else:
        assert given == (None if expected in ("", [], None) else expected)


def test_an_object_that_resources_fill_in_is_filled_in_by_the_api_server_too() -> None:
    spec = ModelDeployment.model_validate(_minimal()).model_dump(by_alias=True)["spec"]

    filled = {f"spec.{name}" for name, value in spec.items() if isinstance(value, dict)}

    assert filled - {"spec.model", "spec.kvCache"} == {
        path
        for path, field in CRD_FIELDS.items()
        if field.schema.get("type") == "object" and "default" in field.schema
    }


ALL_FIELDS = [*spec_fields(), *status_fields()]


def _is_inner(path: str) -> bool:
    """Items of plain lists and values of maps are explained by the list or the map."""
    return path.endswith(("servedNames[]", "extraArgs[]", "{}"))


@pytest.mark.parametrize("field", ALL_FIELDS, ids=lambda field: field.path)
def test_a_field_is_explained_in_eight_words_or_more(field: SchemaField) -> None:
    if not _is_inner(field.path):
        assert len(field.schema["description"].split()) >= 8, field.schema["description"]


@pytest.mark.parametrize("path", sorted(CRD_FIELDS))
def test_a_description_names_flag_unit_default_and_bounds(path: str) -> None:
    field = CRD_FIELDS[path]
    if _is_inner(path):
        return
    text = field.schema["description"]
    flag = re.match(r"--[a-z-]+", RESOURCE_FIELDS[path].schema.get("description", ""))

    assert flag is None or text.startswith(f"{flag[0]}: ")
    for suffix, unit in UNITS.items():
        assert not path.endswith(suffix) or unit in text.lower()
    if "default" in field.schema and field.schema["type"] != "object":
        default = json.dumps(field.schema["default"]).strip('"')
        assert re.search(rf"[Dd]efault: {re.escape(default)}|{re.escape(default)}[^.]* is the default", text)
    elif not field.required:
        assert "default" in text.lower() or "exactly one" in text or field.schema.get("type") == "object"
    for value in field.schema.get("enum", ()):
        assert str(value) in text
    for bound in ("minimum", "maximum", "maxItems"):
        assert bound not in field.schema or str(field.schema[bound]) in text


@pytest.mark.parametrize("field", ALL_FIELDS, ids=lambda field: field.path)
def test_everything_that_a_client_can_fill_has_a_bound(field: SchemaField) -> None:
    match field.schema.get("type"):
        case "string":
            assert {"maxLength", "enum", "format"} & field.schema.keys()
        case "integer":
            assert field.schema["format"] in {"int32", "int64"}
            assert "enum" in field.schema or "minimum" in field.schema
            if field.path.startswith("spec"):
                assert "enum" in field.schema or "maximum" in field.schema
        case "array":
            assert "maxItems" in field.schema
            assert field.schema["x-kubernetes-list-type"] in {"set", "map", "atomic"}
        case "object":
            bounded = {"properties", "maxProperties"} & field.schema.keys()
            assert bounded, "an object with neither known members nor a bound"
        case "boolean":
            pass
        case kind:
            assert kind is None
            assert field.schema["x-kubernetes-int-or-string"]
            assert field.schema["maxLength"] <= 32


def test_unions_and_their_members_are_replaced_as_a_whole_by_server_side_apply() -> None:
    """Without it an empty object over a filled one is refused, and two managers end with two members."""
    unions = ("spec.model.source", "spec.model.cache")
    members = [path for path in CRD_FIELDS if path.rpartition(".")[0] in unions]

    assert len(members) == 7
    for path in (*unions, *members, "spec.engine.env[].valueFrom"):
        assert CRD_FIELDS[path].schema["x-kubernetes-map-type"] == "atomic", path


def test_names_are_those_of_the_contracts() -> None:
    crd = load_crd()

    assert crd["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert crd["spec"]["group"] == GROUP
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd_version()["name"] == VERSION
    assert crd["spec"]["names"] == {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["mdep"],
        "categories": ["warmfleet"],
    }


def test_a_name_has_the_same_bounds_in_both() -> None:
    document = ModelDeployment.model_json_schema(by_alias=True)
    metadata = _plain(document["properties"]["metadata"], document["$defs"])
    name = root_schema()["properties"]["metadata"]["properties"]["name"]

    assert _constraints(name) == _constraints(metadata["properties"]["name"])


def test_columns_and_scale_point_at_fields_that_exist() -> None:
    paths = {f".{field.path}" for field in ALL_FIELDS} | {".metadata.creationTimestamp"}
    columns = {column["name"]: column for column in crd_version()["additionalPrinterColumns"]}
    scale = crd_version()["subresources"]["scale"]

    assert list(columns) == [
        "Model",
        "Ready",
        "Status",
        "KV%",
        "Hit%",
        "Waiting",
        "Age",
        "Revision",
        "Image",
        "Accelerator",
        "EqualBits",
    ]
    assert [name for name, column in columns.items() if column.get("priority", 0)] == [
        "Revision",
        "Image",
        "Accelerator",
        "EqualBits",
    ]
    for path in [column["jsonPath"] for column in columns.values()] + list(scale.values()):
        assert re.sub(r"\[[^]]*\]", "[]", path) in paths


@pytest.mark.parametrize("violation", spec_violations(), ids=lambda violation: violation.constraint)
def test_what_the_api_server_refuses_is_no_manifest_for_warmfleet_up_either(violation: Violation) -> None:
    """tests/kubernetes shows each of them to a real API server."""
    with pytest.raises(ManifestError):
        parse_manifest(violation.manifest, origin="fleet.yaml")


def test_the_page_of_the_documentation_is_made_from_the_definition() -> None:
    page = PAGE.read_text()

    assert "`make reference`" in page
    assert with_tables(page, tables(load_crd())) == page
    for field in spec_fields():
        if field.path != "spec" and not field.path.endswith(("[]", "{}")):
            assert f"| `{field.path.removeprefix('spec.')}` |" in page


def test_the_page_lists_every_rule() -> None:
    page = PAGE.read_text()
    rules = [rule for field in spec_fields() for rule in field.schema.get("x-kubernetes-validations", ())]

    assert rules
    assert all(rule["message"] in page for rule in rules)


def test_the_conditions_that_are_named_are_those_that_the_operator_writes() -> None:
    (conditions,) = [field for field in status_fields() if field.path == "status.conditions"]
    kinds = next(field for field in status_fields() if field.path == "status.conditions[].status")

    assert set(re.findall(r"[A-Z]\w+", conditions.schema["description"])) == set(ConditionType)
    assert set(kinds.schema["enum"]) == set(ConditionStatus)
