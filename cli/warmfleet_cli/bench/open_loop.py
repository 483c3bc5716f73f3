"""Sends the requests of a run: in an open loop at their due times, or with a fixed number in flight."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from warmfleet_cli.bench.client import Answer, Question, ask
from warmfleet_cli.bench.workload import PlannedRequest

LEAST_LOAD_RATIO = 0.5
MOST_LOAD_RATIO = 0.8
"""Of the throughput at saturation. Above this, a Poisson stream queues under any policy."""

_LEAD_SECONDS = 0.05

OnAnswer = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends questions to the routers in round-robin order."""

    client: httpx.AsyncClient
    router_urls: Sequence[str]
    model: str
    output_tokens: int
    on_answer: OnAnswer

    async def send(self, number: int, name: str, token_ids: Sequence[int], due: float | None) -> Answer:
        """Send the `number`-th question of the run called `name`."""
        question = Question(f"{name}-{number}", self.model, token_ids, self.output_tokens)
        url = self.router_urls[number % len(self.router_urls)]
        answer = await ask(self.client, url, question, due=due)
        self.on_answer()
        return answer


async def send_when_due(sender: Sender, name: str, plan: Sequence[PlannedRequest]) -> list[Answer]:
    """Send each request at its moment, whether or not earlier ones have been answered (an open loop)."""
    clock = asyncio.get_running_loop().time
    start = clock() + _LEAD_SECONDS

    async def one(number: int, request: PlannedRequest) -> Answer:
        due = start + request.due_seconds
        await asyncio.sleep(max(due - clock(), 0))
        return await sender.send(number, name, request.token_ids, due)

    return await asyncio.gather(*(one(number, request) for number, request in enumerate(plan)))


async def send_at_saturation(
    sender: Sender, name: str, prompts: Sequence[Sequence[int]], in_flight: int
) -> tuple[list[Answer], float]:
    """Keep `in_flight` requests running until all are answered; returns answers and requests per second."""
    clock = asyncio.get_running_loop().time
    left = deque(enumerate(prompts))
    answers: list[Answer] = []

    async def one_after_the_other() -> None:
        while left:
            number, token_ids = left.popleft()
            answers.append(await sender.send(number, name, token_ids, None))

    start = clock()
    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    return answers, len(answers) / (clock() - start)


def choose_rate(saturation_per_second: float, *, requests: int, seconds: float) -> float:
    """The lowest rate at which `requests` fit into `seconds`, in requests per second.

    Between `LEAST_LOAD_RATIO` and `MOST_LOAD_RATIO` of saturation; a machine too slow for that takes longer,
    so that requests do not queue.
    """
    least, most = LEAST_LOAD_RATIO * saturation_per_second, MOST_LOAD_RATIO * saturation_per_second
    needed = requests / seconds if seconds > 0 else most
    return min(max(needed, least), most)
