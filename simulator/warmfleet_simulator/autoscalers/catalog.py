"""The policies of other autoscalers by name, and the settings among which a comparison searches.

Where a policy's source has a setting, it is one of the five. None of them is known to be good for a workload,
so a comparison tries all. A grid begins with the setting that keeps the fewest replicas.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_simulator.autoscalers.kv_utilization import KvUtilization
from warmfleet_simulator.autoscalers.predicted_latency import PredictedLatency
from warmfleet_simulator.autoscalers.request_counts import RequestCount, queued_requests, requests_in_flight
from warmfleet_simulator.autoscalers.requests_per_second import RequestsPerSecond
from warmfleet_simulator.autoscalers.token_supply import TokenSupply
from warmfleet_simulator.errors import SettingError, UnknownNameError
from warmfleet_simulator.scaling.autoscaler import Autoscaler
from warmfleet_simulator.scaling.objective import Objective

Setting = tuple[float, ...]
MAX_NUMBER: Final = 1e6


@dataclass(frozen=True, slots=True)
class OtherAutoscaler:
    """One policy."""

    setting: str
    """What the numbers of a setting are, as `queued requests per pod`."""
    numbers: int
    """Of them."""
    grid: Callable[[float], Sequence[Setting]]
    """Settings to try, where a replica takes so many requests per second at the peak."""
    make: Callable[[Setting, Objective], Autoscaler]
    accepts: Callable[[Setting], bool] = lambda setting: setting[0] > 0
    """Whether numbers that are not negative are a setting."""


def _constant(*settings: Setting) -> Callable[[float], Sequence[Setting]]:
    return lambda _requests_per_second: settings


def _shares_of_capacity(requests_per_second: float) -> Sequence[Setting]:
    """A load test gives what a replica takes; which share of it to aim at is to be found."""
    return [(float(f"{share * requests_per_second:.3g}"),) for share in (1.2, 1.0, 0.85, 0.7, 0.55)]


AUTOSCALERS: Final[Mapping[str, OtherAutoscaler]] = {
    "RequestsPerSecond": OtherAutoscaler(
        "requests per second and pod",
        1,
        _shares_of_capacity,
        lambda setting, _: RequestsPerSecond(*setting),
    ),
    "KvUtilization": OtherAutoscaler(
        "mean percent of KV memory in use",
        1,
        _constant((60.0,), (45.0,), (35.0,), (25.0,), (15.0,)),
        lambda setting, _: KvUtilization(*setting),
    ),
    "QueuedRequests": OtherAutoscaler(
        "queued requests per pod",
        1,
        _constant((5.0,), (2.0,), (1.0,), (0.5,), (0.2,)),
        lambda setting, _: RequestCount(queued_requests, *setting),
    ),
    "RequestsInFlight": OtherAutoscaler(
        "requests in flight per pod",
        1,
        _constant((16.0,), (10.0,), (7.0,), (5.0,), (3.0,)),
        lambda setting, _: RequestCount(requests_in_flight, *setting),
    ),
    "TokenSupply": OtherAutoscaler(
        "percent of supply / seconds before growth",
        2,
        _constant((85.0, 240.0), (85.0, 0.0), (65.0, 0.0), (45.0, 0.0), (30.0, 0.0)),
        lambda setting, _: TokenSupply(*setting),
        lambda setting: setting[0] > TokenSupply.DOWN_BELOW,
    ),
    "PredictedLatency": OtherAutoscaler(
        "percent of the objective's times, up / down",
        2,
        _constant((100.0, 80.0), (85.0, 65.0), (70.0, 55.0), (55.0, 40.0), (40.0, 25.0)),
        lambda setting, objective: PredictedLatency(objective, *setting),
        lambda setting: 0 < setting[1] < setting[0],
    ),
}


def check_setting(name: str, setting: Setting) -> None:
    """Whether there is such a policy, and such a setting of it.

    Raises:
        SimulationError: there is not.
    """
    if name not in AUTOSCALERS:
        raise UnknownNameError("policy", name, ["Fixed", "Operator", *AUTOSCALERS])
    other = AUTOSCALERS[name]
    is_possible = (
        len(setting) == other.numbers
        and all(0 <= number <= MAX_NUMBER for number in setting)
        and other.accepts(setting)
    )
    if not is_possible:
        raise SettingError(name, other.setting, setting_text(setting))


def make_autoscaler(name: str, setting: Setting, objective: Objective) -> Autoscaler:
    """The policy `name` with a setting that `check_setting` accepts."""
    return AUTOSCALERS[name].make(setting, objective)


def parse_setting(text: str) -> Setting:
    """The setting that `text` writes, as `60` or `55/40`; NaN, which none accepts, for what is no number."""
    return tuple(_number(part) for part in text.split("/"))


def setting_text(setting: Setting) -> str:
    """As `parse_setting` reads it."""
    return "/".join(f"{number:g}" for number in setting)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
