"""Revisions follow from content alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.names import REVISION_LABEL
from warmfleet_operator.desired.revision import revision, with_revision

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
TEMPLATES = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def reordered(value):
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(list(value))}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(TEMPLATES)
def test_the_order_of_keys_does_not_matter(template):
    assert revision(reordered(template)) == revision(template)


@given(st.lists(st.text(max_size=3).map(lambda text: {"spec": {"a": text}}), max_size=8))
def test_different_content_is_a_different_revision(templates):
    assert len({revision(template) for template in templates}) == len({str(each) for each in templates})


def test_a_number_is_not_its_text_nor_a_truth():
    assert len({revision({"a": value}) for value in (1, "1", True, [1], {"1": 1}, None)}) == 6


@pytest.mark.parametrize("labels", [{}, {"a": "b"}, {REVISION_LABEL: "old"}])
def test_the_label_is_no_part_of_what_it_names(labels):
    template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    labelled = with_revision(template)
    assert with_revision(labelled) == labelled
    plain = {**template, "metadata": {"labels": {k: v for k, v in labels.items() if k != REVISION_LABEL}}}
    assert labelled["metadata"]["labels"][REVISION_LABEL] == revision(plain)
    assert labelled["metadata"]["labels"].keys() == labels.keys() | {REVISION_LABEL}
