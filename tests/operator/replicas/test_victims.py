"""Victims of a lower number: pods that serve nothing, then by what only they hold; and the marks for them."""

import random

from warmfleet_operator.replicas.victims import Marking, markings, victims_of
from warmfleet_testing.resources.observations import NOW, pod
from warmfleet_testing.resources.scaling_signals import replica


def reports(**values: float):
    """Reports of pods: what each alone holds, in tokens that are reused per second."""
    return {
        f"uid-{name}": replica(f"uid-{name}", unique_value_tokens_per_second=value)
        for name, value in values.items()
    }


def names(pods):
    return [item.name for item in pods]


def test_the_least_valuable_go_first_and_one_without_a_report_holds_nothing() -> None:
    pods = [pod(name) for name in ("a", "b", "c", "d")]

    assert names(victims_of(pods, reports(a=3.0, b=1.0, d=2.0), 3)) == ["c", "b", "d"]
    assert victims_of(pods, {}, -1) == ()


def test_pods_that_serve_nothing_go_before_all_others_as_kubernetes_takes_them() -> None:
    pods = [
        pod("cheap"),
        pod("crashing", ready=False),
        pod("starting", ready=False, phase="Pending"),
        pod("homeless", ready=False, phase="Pending", assigned=False),
        pod("leaving", terminating=True),
        pod("ended", phase="Failed"),
        pod("fetch", job="m-fetch"),
    ]
    random.Random(1).shuffle(pods)

    assert names(victims_of(pods, reports(crashing=9.0, starting=9.0, homeless=9.0), 9)) == [
        "homeless",
        "starting",
        "crashing",
        "cheap",
    ]


def test_of_equal_pods_the_one_with_less_live_work_goes_then_the_newest() -> None:
    known = reports(busy=0.0) | {"uid-busy": replica("uid-busy", pinned_tokens=5)}
    pods = [pod("busy"), pod("old", created_seconds=NOW - 900), pod("new", created_seconds=NOW - 9)]

    assert names(victims_of(pods, known, 2)) == ["new", "old"]


def test_of_pods_whose_value_is_not_counted_yet_the_one_with_the_emptier_cache_goes() -> None:
    pods = [pod("warm"), pod("cold")]
    known = {
        "uid-warm": replica("uid-warm", evictable_tokens=400),
        "uid-cold": replica("uid-cold", evictable_tokens=0, queued_uncached_tokens=10),
    }

    assert names(victims_of(pods, known, 1)) == ["cold"]


def test_the_policys_own_choice_goes_before_a_cheaper_one_but_not_before_one_that_is_not_ready() -> None:
    pods = [pod("a"), pod("b"), pod("c", ready=False)]

    assert names(victims_of(pods, reports(a=5.0, b=0.0, c=9.0), 2, first="uid-a")) == ["c", "a"]


def test_marks_are_below_every_other_cost_in_order_and_only_changes_are_written() -> None:
    a, b, c, d = pod("a"), pod("b", deletion_cost=-1), pod("c", deletion_cost=-7), pod("d", deletion_cost=4)

    assert markings([a, b, c, d], [a, b]) == (Marking("a", "uid-a", -2), Marking("c", "uid-c", None))
    assert markings([pod("a", deletion_cost=-1)], [a]) == ()
