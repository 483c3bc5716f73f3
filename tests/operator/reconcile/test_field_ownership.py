"""When the owned fields of an existing object match."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.reconcile.field_ownership import owned_fields_match

JSON = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 9), st.text("ab1", max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcdefg"), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abcdefg"), JSON, max_size=5)


@given(OBJECTS)
def test_everything_matches_itself(value) -> None:
    assert owned_fields_match(value, json.loads(json.dumps(value)))


@given(OBJECTS, OBJECTS)
def test_what_others_add_is_no_difference(value, additional) -> None:
    assert owned_fields_match(value, {**additional, **value})


@given(OBJECTS, st.sampled_from("abcdefg"), st.integers(10, 20))
def test_another_value_is_a_difference(value, field, number) -> None:
    assert not owned_fields_match({**value, field: number}, {**value, field: number + 1})
    assert not owned_fields_match(
        {**value, field: number}, {name: item for name, item in value.items() if name != field}
    )


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ({"limits": {"cpu": "1000m", "memory": "1024Mi"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
        ({"requests": {"nvidia.com/gpu": 1}}, {"requests": {"nvidia.com/gpu": "1"}}),
        ({"requests": {"cpu": "0.5"}}, {"requests": {"cpu": "500m"}}),
        ({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}),
        ({"emptyDir": {}}, {"emptyDir": {}}),
        ({"subPath": "", "hostNetwork": False, "items": [], "annotations": {}}, {}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A", "value": "1"}]}),
        ({"ports": [{"containerPort": 8000}]}, {"ports": [{"containerPort": 8000, "protocol": "TCP"}]}),
    ],
)
def test_what_the_api_server_makes_of_it_is_no_difference(wanted, there) -> None:
    assert owned_fields_match(wanted, there)


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}),
        ({"labels": {"version": "1000m"}}, {"labels": {"version": "1"}}),
        ({"args": ["--a"]}, {"args": ["--a", "--b"]}),
        ({"args": ["--a", "--b"]}, {"args": ["--b", "--a"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "a"}, {"key": "b"}]}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}),
        ({"replicas": 0}, {"replicas": 3}),
        ({"spec": {"a": 1}}, {"spec": None}),
        ({"containers": [{"name": "engine"}]}, {"containers": "engine"}),
    ],
)
def test_an_edit_is_a_difference(wanted, there) -> None:
    assert not owned_fields_match(wanted, there)
