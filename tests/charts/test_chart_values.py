"""values.yaml, its schema and its table agree, and what is misspelt is refused by its path."""

import importlib.util
import json
import re
from copy import deepcopy

import helm_python
import pytest

from warmfleet_testing.resources.chart_render import (
    CASES,
    CHART,
    REGISTRY,
    REPOSITORY,
    case_values,
    loaded_chart,
)
from warmfleet_worker.settings import parse_settings

_spec = importlib.util.spec_from_file_location(
    "values_reference", REPOSITORY / "charts" / "values_reference.py"
)
values_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(values_reference)
VALUES = values_reference.read_values((CHART / "values.yaml").read_text(encoding="utf-8"))
GROUPS = [value.path for value in VALUES if value.is_group]


def nested(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


def with_registry(values):
    merged = deepcopy(REGISTRY)
    for key, value in values.items():
        merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
    return merged


def test_the_schema_and_the_table_are_those_of_values_yaml():
    for path, text in values_reference.rendered(VALUES).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make chart`"


def test_every_key_of_values_yaml_is_described():
    def keys(mapping, path=()):
        for name, value in mapping.items():
            yield (*path, name)
            group = next((item for item in VALUES if item.path == (*path, name)), None)
            if group is not None and group.is_group:
                yield from keys(value, (*path, name))

    defaults = loaded_chart().merge_values({})
    assert set(keys(defaults)) - {("global",)} == {value.path for value in VALUES}
    assert all(len(value.description.split()) >= 2 for value in VALUES)


def test_a_key_without_a_description_is_refused_by_its_path():
    with pytest.raises(ValueError, match=r"router\.replicas has no description"):
        values_reference.read_values("# The router.\nrouter:\n  replicas: 2\n")


@pytest.mark.parametrize("case", CASES)
def test_the_schema_takes_the_cases(case):
    loaded_chart().validate_schema(case_values(case))


@pytest.mark.parametrize("path", [(), *GROUPS], ids=lambda path: ".".join(path) or "root")
def test_a_misspelt_value_is_refused_by_its_path(path):
    wrong = nested((*path, "mispelt"), 1)
    with pytest.raises(helm_python.HelmValuesError) as caught:
        loaded_chart().validate_schema(with_registry(wrong))
    assert "mispelt" in str(caught.value)
    assert "/".join(("", *path)) in str(caught.value)


@pytest.mark.parametrize(
    "value", [value for value in VALUES if not value.is_group], ids=lambda value: ".".join(value.path)
)
def test_a_value_of_another_type_is_refused_by_its_path(value):
    wrong = [] if isinstance(value.default, dict) else {"wrong": "type"}
    with pytest.raises(helm_python.HelmValuesError) as caught:
        loaded_chart().validate_schema(with_registry(nested(value.path, wrong)))
    assert "/".join(("", *value.path)) in str(caught.value)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"images": {"router": {"digest": "sha256:12"}}}, "/images/router/digest"),
        ({"images": {"pullPolicy": "Sometimes"}}, "/images/pullPolicy"),
        ({"rbac": {"scope": "namespace"}}, "/rbac/scope"),
        ({"rbac": {"namespaces": ["Team A"]}}, "/rbac/namespaces/0"),
        ({"router": {"auth": {"mode": "Open"}}}, "/router/auth/mode"),
        ({"router": {"drainSeconds": 100000}}, "/router/drainSeconds"),
        ({"router": {"service": {"port": 0}}}, "/router/service/port"),
        ({"operator": {"logLevel": "trace"}}, "/operator/logLevel"),
        ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0"),
        ({"commonLabels": {"version": 1}}, "/commonLabels/version"),
        ({"nameOverride": "Fleet"}, "/nameOverride"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_its_path(values, path):
    with pytest.raises(helm_python.HelmValuesError, match=re.escape(path)):
        loaded_chart().validate_schema(with_registry(values))


def test_a_worker_takes_the_event_streams_of_all_routers_that_a_release_may_have_during_a_rollout():
    router = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]["router"]
    of_a_number = router["properties"]["replicas"]["maximum"]
    of_an_autoscaler = router["properties"]["autoscaling"]["properties"]["maxReplicas"]["maximum"]

    streams = parse_settings(["--model", "m", "--uid", "u"], {}).max_subscribers

    # Routers that drain keep theirs, as many as there are new ones.
    assert streams > 2 * max(of_a_number, of_an_autoscaler)
