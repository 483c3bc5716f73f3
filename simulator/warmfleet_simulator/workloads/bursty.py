"""Traffic that comes in bursts, of prompts that share nothing."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.workloads.arrivals import bursts
from warmfleet_simulator.workloads.steady import independent_prompts
from warmfleet_simulator.workloads.workload import Seconds, Tokens, Workload


class Bursty(Workload, frozen=True, kw_only=True, tag="bursty"):
    """Independent requests whose rate rises at random times. An infinite cache hits nothing."""

    input_tokens: Tokens = 2000
    """Mean of a prompt."""
    burst_factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 5.0
    """The rate in a burst is so many times that of the calm between bursts."""
    burst_seconds: Seconds = 60.0
    """Mean length of a burst."""
    calm_seconds: Seconds = 300.0
    """Mean time between two bursts."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        arrivals = bursts(
            self.requests_per_second,
            factor=self.burst_factor,
            burst_seconds=self.burst_seconds,
            calm_seconds=self.calm_seconds,
            draw=self.draws("arrivals"),
        )
        return independent_prompts(self, self.input_tokens, arrivals)
