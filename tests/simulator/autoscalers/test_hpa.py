"""The algorithm of HorizontalPodAutoscaler against the examples of its documentation."""

import pytest

from warmfleet_simulator.autoscalers.hpa import Behavior, Change, Hpa, by_average, by_pods, by_value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (200, 8),  # "if the current metric value is 200m, and the desired value is 100m, ... doubled"
        (50, 2),  # "if the current value is instead 50m, you'll halve the number of replicas"
        (109, 4),  # "skips scaling if the ratio is sufficiently close to 1.0", by default 0.1
        (110, 4),
        (111, 5),
        (91, 4),
        (89, 4),  # 4 * 0.89 is 3.56
        (75, 3),
    ],
)
def test_the_ratio_of_metric_and_target_gives_the_replicas(value: float, wanted: int) -> None:
    assert by_pods([value] * 4, unready=0, missing=0, replicas=4, target=100) == wanted
    assert by_value(value, ready=4, replicas=4, target=100) == wanted
    assert by_average(4 * value, replicas=4, target=100) == wanted


def test_pods_that_are_not_ready_count_as_idle_when_it_would_grow() -> None:
    # 2 pods at 150 % of their target would need 3; two more that start make the mean 75 %: nothing to do.
    assert by_pods([150, 150], unready=2, missing=0, replicas=4, target=100) == 4
    # At 300 % the mean of four is 150 %.
    assert by_pods([300, 300], unready=2, missing=0, replicas=4, target=100) == 6
    # They are left out when it would shrink.
    assert by_pods([50, 50], unready=2, missing=0, replicas=4, target=100) == 1


def test_ready_pods_without_a_value_keep_a_change_small() -> None:
    assert by_pods([200, 200], unready=0, missing=2, replicas=4, target=100) == 4
    assert by_pods([50, 50], unready=0, missing=2, replicas=4, target=100) == 3
    assert by_pods([], unready=0, missing=4, replicas=4, target=100) == 4


def test_one_value_is_related_to_ready_pods_and_a_total_to_all() -> None:
    assert by_value(150, ready=4, replicas=6, target=100) == 6
    assert by_average(35, replicas=6, target=5) == 7
    assert by_average(32, replicas=6, target=5) == 6


def synced(hpa: Hpa, wanted: int, *, replicas: int, syncs: int, seconds: float = 15.0) -> list[int]:
    """What so many syncs set, each `seconds` after the one before, if the metric asks for `wanted`."""
    numbers = []
    for sync in range(syncs):
        replicas = hpa.replicas(wanted, replicas=replicas, now_seconds=seconds * sync)
        numbers.append(replicas)
    return numbers


def test_growth_is_at_most_four_pods_or_a_doubling_per_period() -> None:
    assert synced(Hpa(), 100, replicas=1, syncs=4) == [5, 10, 20, 40]


def test_a_period_counts_what_was_added_in_it() -> None:
    hpa = Hpa(Behavior(up=(Change(60, pods=4),)))
    assert synced(hpa, 100, replicas=2, syncs=6) == [6, 6, 6, 6, 10, 10]


def test_a_percentage_of_pods_goes_per_period() -> None:
    """From 80 pods to 10, ten percent a minute: "during the first step 8 replicas will be reduced ... 7.2 but
    the number is rounded up to 8"; below 40 the policy of four pods allows more."""
    down = (Change(60, pods=4), Change(60, percent=10))
    hpa = Hpa(Behavior(down=down, down_stabilization_seconds=0))
    numbers = synced(hpa, 10, replicas=80, syncs=20, seconds=60.0)
    assert numbers[:3] == [72, 64, 57]
    below = [number for number in numbers if number <= 36]
    assert [below[0] - below[1], below[1] - below[2]] == [4, 4]
    assert numbers[-1] == 10


def test_a_shrink_takes_the_highest_number_of_the_last_five_minutes() -> None:
    hpa = Hpa()
    asked = {0: 10, 15: 4, 30: 8, 45: 3}
    replicas, numbers = 10, {}
    for second in range(0, 420, 15):
        replicas = hpa.replicas(asked.get(second, 3), replicas=replicas, now_seconds=float(second))
        numbers[second] = replicas
    assert numbers[285] == 10
    assert numbers[300] == 8
    assert numbers[315] == 8
    assert numbers[330] == 3


def test_growth_takes_the_lowest_number_of_its_window() -> None:
    hpa = Hpa(Behavior(up_stabilization_seconds=60))
    numbers = [hpa.replicas(4, replicas=2, now_seconds=15.0 * sync) for sync in range(5)]
    assert numbers == [2, 2, 2, 2, 4]


def test_a_sync_is_due_once_in_fifteen_seconds() -> None:
    hpa = Hpa()
    assert [second for second in range(1, 62, 2) if hpa.is_due(float(second))] == [1, 15, 31, 45, 61]
