"""Environment and command line of a container, from its manifest."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.container.environment import (
    command_line,
    environment,
    expand,
    referenced_names,
)
from warmfleet_devcluster.node.errors import ContainerConfigError
from warmfleet_devcluster.node.references.config_objects import ConfigObjects
from warmfleet_devcluster.node.references.downward_api import PodContext, field_value

POD = {
    "metadata": {
        "name": "web-0",
        "namespace": "models",
        "uid": "u-1",
        "labels": {"app": "web", "a.b/c": "d"},
        "annotations": {"note": 'a "quoted" word'},
    },
    "spec": {"nodeName": "node-0", "serviceAccountName": "runner", "containers": []},
}
CONTEXT = PodContext(POD, "10.244.0.2", "10.10.0.10", {"cpu": "2", "memory": "8Gi"})


def secret(**texts: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}


def environment_of(container: dict[str, Any], objects: ConfigObjects | None = None, **sources: Any) -> Any:
    sources = {"image_env": {}, "cluster_env": {}, **sources}
    return environment(container, CONTEXT, objects or ConfigObjects(), **sources)


def test_references_expand_escapes_stay_and_unknown_names_stay_as_written():
    known = {"A": "1", "B_B": "2"}
    assert expand("$(A)-$(B_B)", known) == "1-2"
    assert expand("$$(A)", known) == "$(A)"
    assert expand("$$$(A)", known) == "$1"
    assert expand("$(C) $A ${A} $( $", known) == "$(C) $A ${A} $( $"


@given(st.text(alphabet="aA$() ", max_size=30))
def test_what_names_nothing_known_only_loses_its_escapes(text):
    assert expand(text, {}).replace("$", "") == text.replace("$", "")


@given(st.text(max_size=30))
def test_a_text_without_dollars_is_unchanged(text):
    assert expand(text.replace("$", ""), {"A": "1"}) == text.replace("$", "")


def test_a_variable_sees_those_before_it_and_none_after():
    container = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}]
    }
    assert environment_of(container) == {"A": "1", "B": "1$(C)", "C": "3"}


def test_the_manifest_wins_over_env_from_and_that_over_the_image():
    container = {
        "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}}],
        "env": [{"name": "B", "value": "env"}],
    }
    objects = ConfigObjects(
        secrets={"s": secret(K="v")}, config_maps={"m": {"data": {"A": "map", "B": "map"}}}
    )
    given_env = environment_of(container, objects, image_env={"A": "image", "P": "image"})
    assert given_env == {"P": "image", "A": "map", "B": "env", "S_K": "v"}


def test_the_downward_api_gives_what_the_pod_and_the_node_know():
    paths = {
        "metadata.name": "web-0",
        "metadata.namespace": "models",
        "metadata.uid": "u-1",
        "metadata.labels['app']": "web",
        "metadata.labels['a.b/c']": "d",
        "metadata.annotations['none']": "",
        "metadata.annotations": 'note="a \\"quoted\\" word"',
        "spec.nodeName": "node-0",
        "spec.serviceAccountName": "runner",
        "status.podIP": "10.244.0.2",
        "status.hostIP": "10.10.0.10",
    }
    assert {path: field_value(path, CONTEXT) for path in paths} == paths
    with pytest.raises(ContainerConfigError, match=r"spec\.nothing"):
        field_value("spec.nothing", CONTEXT)


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "512"),
        ("limits.memory", "0", "536870912"),
        ("requests.cpu", "1m", "1500"),
        ("requests.cpu", "1", "2"),  # rounded up
        ("limits.cpu", "1", "2"),  # what the node has
    ],
)
def test_resources_come_in_multiples_of_their_divisor(resource, divisor, value):
    container = {
        "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "1500m"}},
        "env": [{"name": "R", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}],
    }
    assert environment_of(container) == {"R": value}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            'secret "s" not found',
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]},
            "couldn't find key k in ConfigMap models/m",
        ),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, 'secret "s" not found'),
    ],
)
def test_a_missing_reference_is_an_error_unless_it_is_optional(container, message):
    objects = ConfigObjects(secrets={"s": None}, config_maps={"m": {"data": {}}})
    with pytest.raises(ContainerConfigError) as refused:
        environment_of(container, objects)
    assert str(refused.value) == message
    for origin in container.get("env", []):
        next(iter(origin["valueFrom"].values()))["optional"] = True
    for origin in container.get("envFrom", []):
        origin["secretRef"]["optional"] = True
    assert environment_of(container, objects) == {}


def test_referenced_names_lists_every_secret_and_config_map():
    container = {
        "envFrom": [{"secretRef": {"name": "s1"}}, {"configMapRef": {"name": "m1"}}],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m2", "key": "k"}}},
            {"name": "C", "value": "x"},
        ],
    }
    assert referenced_names(container) == ({"s1", "s2"}, {"m1", "m2"})


@pytest.mark.parametrize(
    ("manifest", "line"),
    [
        ({}, ["serve", "--all"]),
        ({"args": ["--port", "$(PORT)"]}, ["serve", "--port", "80"]),
        ({"command": ["sh", "-c"], "args": ["echo $(PORT)"]}, ["sh", "-c", "echo 80"]),
        ({"command": ["true"]}, ["true"]),
    ],
)
def test_command_replaces_the_entry_point_and_args_its_arguments(manifest, line):
    assert command_line(manifest, {"PORT": "80"}, ["serve"], ["--all"]) == line


def test_a_container_with_nothing_to_run_is_refused():
    with pytest.raises(ContainerConfigError, match="no command"):
        command_line({}, {}, [], [])
