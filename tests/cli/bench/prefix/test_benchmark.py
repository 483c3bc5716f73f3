from pathlib import Path

import pytest

from warmfleet_cli.bench.fleet import WorkerShape
from warmfleet_cli.bench.open_loop import LEAST_LOAD_RATIO, MOST_LOAD_RATIO
from warmfleet_cli.bench.prefix.benchmark import TWO_ROUTERS, PrefixSettings, plan_rounds
from warmfleet_cli.bench.variants import Variant
from warmfleet_cli.bench.workload import PrefixWorkload

LOWEST_COST, ROUND_ROBIN = Variant("LowestCost"), Variant("RoundRobin")


@pytest.fixture
def settings():
    shape = WorkerShape(Path("model"), "m", 1, 16, "Float32", 320, 1)
    return PrefixSettings(shape=shape, vocabulary=range(64, 512), workload=PrefixWorkload())


def test_a_fast_fleet_runs_every_variant_in_every_round_and_every_second_round_backwards(settings):
    rounds, rate = plan_rounds(settings, saturation_per_second=20.0, seconds=330)

    forwards = [LOWEST_COST, ROUND_ROBIN, TWO_ROUTERS]
    assert rounds == [forwards, forwards[::-1], forwards]
    assert rate == 20.0 * LEAST_LOAD_RATIO


def test_a_slower_fleet_saves_time_on_the_second_router_and_not_on_the_policies(settings):
    rounds, rate = plan_rounds(settings, saturation_per_second=2.5, seconds=330)

    assert rounds == [
        [LOWEST_COST, ROUND_ROBIN, TWO_ROUTERS],
        [ROUND_ROBIN, LOWEST_COST],
        [LOWEST_COST, ROUND_ROBIN],
    ]
    assert 7 * 80 / rate <= 330
    assert rate <= 2.5 * MOST_LOAD_RATIO


def test_a_fleet_too_slow_for_the_time_is_still_not_driven_into_saturation(settings):
    rounds, rate = plan_rounds(settings, saturation_per_second=0.5, seconds=330)

    assert sum(map(len, rounds)) == 7
    assert rate == 0.5 * MOST_LOAD_RATIO
