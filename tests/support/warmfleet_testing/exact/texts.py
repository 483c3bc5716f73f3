"""Chat requests of an OpenAI client, greedy and seeded, and their answers: alone, together, in any order."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx

from warmfleet_testing.processes.plain_http import NO_TLS

IN_FLIGHT: Final = 16
_TEXT: Final = "the lake so still that clouds lay in it and a man in a boat waved at us from far away"
_SYSTEM: Final = (
    "You are terse.",
    "You write letters to a friend who lives between the mountains and the sea, and you never hurry.",
)

Body = dict[str, Any]
Choices = list[dict[str, Any]]


def first_turns(requests: int, model: str) -> list[Body]:
    """Requests with few beginnings: every other one greedy, the others seeded, some with two answers."""
    draw = random.Random(requests)
    return [
        {
            "model": model,
            "messages": [
                {"role": "system", "content": draw.choice(_SYSTEM)},
                {"role": "user", "content": _sentence(draw, draw.randint(3, 40))},
            ],
            "max_tokens": draw.choice((3, 9, 20)),
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 2,
            **(
                {"temperature": 0} if number % 2 == 0 else {"temperature": 0.9, "top_p": 0.95, "seed": number}
            ),
            **({"n": 2} if number % 5 == 4 else {}),
        }
        for number in range(requests)
    ]


def next_turn(body: Body, choices: Choices) -> Body:
    """The same conversation with its answer and another message."""
    draw = random.Random(len(choices[0]["message"]["content"]))
    added = [
        {"role": "assistant", "content": choices[0]["message"]["content"]},
        {"role": "user", "content": _sentence(draw, draw.randint(2, 20))},
    ]
    return {**body, "messages": [*body["messages"], *added]}


def answers_alone(url: str, bodies: Sequence[Body], before_each: Callable[[], object]) -> list[Choices]:
    """The choices of one request after the other; `before_each` may empty a cache."""
    answers = []
    with httpx.Client(base_url=url, timeout=120, verify=NO_TLS) as client:
        for body in bodies:
            before_each()
            answers.append(_choices(client.post("/v1/chat/completions", json=body)))
    return answers


async def answers_together(url: str, bodies: Sequence[Body], seed: int) -> list[Choices]:
    """The same with `IN_FLIGHT` requests at a time, in an order of their own."""
    order = list(range(len(bodies)))
    random.Random(seed).shuffle(order)
    answers: dict[int, Choices] = {}
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=NO_TLS) as client:

        async def work() -> None:
            while order:
                number = order.pop()
                answers[number] = _choices(await client.post("/v1/chat/completions", json=bodies[number]))

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return [answers[number] for number in range(len(bodies))]


def _choices(response: httpx.Response) -> Choices:
    assert response.status_code == 200, response.text
    choices: Choices = response.json()["choices"]
    return sorted(choices, key=lambda choice: int(choice["index"]))


def _sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_TEXT.split(), k=words))
