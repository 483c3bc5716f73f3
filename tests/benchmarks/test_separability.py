"""Areas under ROC curves against the definition, and classifiers against what they can and cannot know."""

import numpy as np
import pytest
from harness.separability import auc, by_all_features, by_threshold
from hypothesis import given, settings
from hypothesis import strategies as st

OBSERVATIONS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40)


@given(OBSERVATIONS)
def test_the_area_is_the_share_of_pairs_in_order(observations):
    values = np.array([value for value, _ in observations], dtype=float)
    labels = np.array([label for _, label in observations])
    pairs = [(1.0 if a > b else 0.5 if a == b else 0.0) for a in values[labels] for b in values[~labels]]

    assert auc(values, labels) == pytest.approx(sum(pairs) / len(pairs) if pairs else 0.5)


@settings(max_examples=20)
@given(OBSERVATIONS)
def test_a_threshold_may_lie_on_either_side(observations):
    values, labels = [float(value) for value, _ in observations], [label for _, label in observations]
    found = by_threshold("time", values, labels)

    assert found.auc >= 0.5
    assert found.auc == pytest.approx(by_threshold("time", [-value for value in values], labels).auc)


def test_noise_separates_nothing_and_its_interval_shows_it():
    draw = np.random.default_rng(1)
    features = {"time": draw.random(1000).tolist(), "size": draw.integers(0, 9, 1000).tolist()}
    labels = (draw.random(1000) < 0.5).tolist()

    alone = by_threshold("time", features["time"], labels)
    together = by_all_features(features, labels)

    assert alone.low < 0.5 < alone.high
    assert 0.45 < together.auc < 0.55


def test_features_together_separate_what_none_separates_alone():
    draw = np.random.default_rng(2)
    one, other = draw.random(600), draw.random(600)
    features = {"one": one.tolist(), "other": other.tolist(), "constant": [7.0] * 600}
    labels = (one + other > 1).tolist()

    best_alone = max(by_threshold(name, values, labels).auc for name, values in features.items())

    assert best_alone < 0.9
    assert by_all_features(features, labels).auc > 0.98


def test_the_middle_is_separated_from_both_ends():
    values = np.linspace(-1, 1, 400)
    labels = (np.abs(values) < 0.5).tolist()

    assert by_threshold("time", values.tolist(), labels).auc < 0.55
    assert by_all_features({"time": values.tolist()}, labels).auc > 0.98
