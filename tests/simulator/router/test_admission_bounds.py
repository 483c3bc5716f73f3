"""A large simulated fleet admits as much as the routers that a real one has."""

import pytest

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_simulator.router.admission_bounds import bounds_of_fleet


@pytest.mark.parametrize(("replicas", "routers"), [(0, 1), (1, 1), (100, 1), (101, 2), (1000, 10)])
def test_a_fleet_has_a_router_for_each_hundred_replicas(replicas: int, routers: int) -> None:
    one = AdmissionSettings(max_in_flight=Amount(3, 5, 7), max_held=Amount(1, 2, 3), max_wait_seconds=9)

    bounds = bounds_of_fleet(one, replicas)

    assert bounds.max_in_flight == Amount(3 * routers, 5 * routers, 7 * routers)
    assert bounds.max_held == Amount(routers, 2 * routers, 3 * routers)
    assert bounds.max_wait_seconds == 9
