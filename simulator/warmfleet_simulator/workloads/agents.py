"""Agents that call tools."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.workloads.arrivals import bursts
from warmfleet_simulator.workloads.lengths import Spread
from warmfleet_simulator.workloads.sessions import Calls, SessionShape, SessionWorkload, sessions
from warmfleet_simulator.workloads.workload import PerSecond, Requests, Seconds, Tokens


class Agents(SessionWorkload, frozen=True, kw_only=True, tag="agent"):
    """Agents call the model, run a tool, and call again with its result; they are started in groups.

    With C calls on average, S tokens of system prompt and tools, F of a task, R of a result and A of an
    answer, an infinite cache misses `(F + (C - 1) R) / (C (S + F) + C (C - 1) (R + A))` of all tokens, and
    what fills no block.
    """

    requests: Requests = 20_000
    requests_per_second: PerSecond = 4.0
    """Mean over a long time."""
    output_tokens: Tokens = 120
    """Mean of an answer, which is a call of a tool."""
    agents: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 3
    """Kinds of agents, each with a system prompt of its own."""
    system_tokens: Tokens = 10_000
    """Of each system prompt with its tools."""
    task_tokens: Tokens = 1000
    """Mean of what an agent is to do."""
    result_tokens: Tokens = 700
    """Mean of what a tool returns."""
    calls: Calls = 15.0
    """Mean of an agent's calls until it is done."""
    pause_seconds: Seconds = 10.0
    """Mean of what a tool takes."""
    pause_variation: Annotated[float, msgspec.Meta(ge=0, le=4)] = 2.0
    """Standard deviation of it as a multiple of the mean: most tools take a second, some minutes."""
    burst_factor: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 3.0
    """In a burst agents are started at so many times the rate of the calm between bursts."""
    burst_seconds: Seconds = 300.0
    """Mean length of a burst."""
    calm_seconds: Seconds = 900.0
    """Mean time between two bursts."""

    def generate(self) -> Iterator[TraceRequest]:
        """The requests in the order of their arrivals."""
        shape = SessionShape(
            system_prompts=self.agents,
            system_tokens=self.system_tokens,
            first_inputs=self.lengths(self.task_tokens, "tasks"),
            later_inputs=self.lengths(self.result_tokens, "results"),
            mean_calls=self.calls,
            pauses=Spread(self.pause_seconds, self.pause_variation, self.draws("pauses")),
        )
        starts = bursts(
            self.requests_per_second / self.calls,
            factor=self.burst_factor,
            burst_seconds=self.burst_seconds,
            calm_seconds=self.calm_seconds,
            draw=self.draws("arrivals"),
        )
        return sessions(self, shape, starts)
