"""Steady traffic of prompts that share nothing."""

from collections.abc import Iterator

from warmfleet_simulator.traces.request import Segment, TraceRequest
from warmfleet_simulator.workloads.arrivals import poisson
from warmfleet_simulator.workloads.workload import Tokens, Workload, request


class Steady(Workload, frozen=True, kw_only=True, tag="steady"):
    """Independent requests at a constant rate. An infinite cache hits nothing."""

    input_tokens: Tokens = 2000
    """Mean of a prompt."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        return independent_prompts(
            self, self.input_tokens, poisson(self.requests_per_second, self.draws("arrivals"))
        )


def independent_prompts(
    workload: Workload, input_tokens: int, arrivals: Iterator[float]
) -> Iterator[TraceRequest]:
    """A prompt that no other has at each of `arrivals`, of `input_tokens` on average."""
    inputs = workload.lengths(input_tokens, "inputs")
    outputs = workload.lengths(workload.output_tokens, "outputs")
    for number in range(workload.requests):
        yield request(number, next(arrivals), (Segment(number, inputs.next()),), outputs.next())
