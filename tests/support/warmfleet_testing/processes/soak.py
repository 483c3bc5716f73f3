"""Thousands of distinct requests, some cancelled and some invalid, and the memory after each thousand."""

import asyncio
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any, Final

from warmfleet_testing.engine.worker_process import TINY_NAME, tiny_served_model
from warmfleet_testing.hostile.leaving_clients import Goodbye, LeavingClient
from warmfleet_testing.router.watched_fleet import WatchedFleet, watched_fleet

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
CANCELLED_RATIO: Final = 0.10
INVALID_RATIO: Final = 0.05
AT_ONCE: Final = 16
LAP_REQUESTS: Final = 1000
MAX_WORDS: Final = 120
"""About seven tokens each: within a context of 1,024."""

INVALID: Final[Sequence[tuple[str, dict[str, Any], int]]] = (
    (CHAT, {"messages": "hello"}, 400),
    (CHAT, {"messages": [{"role": "wizard", "content": "hello"}]}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "hello"}], "temperature": "hot"}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "hello"}], "model": "another"}, 404),
    (COMPLETIONS, {"prompt": [1, 2, 10**9]}, 400),
    (COMPLETIONS, {"prompt": "hello", "suffix": "world"}, 400),
    (COMPLETIONS, {"prompt": [40] * 9000}, 400),
    (COMPLETIONS, {"prompt": "hello", "stop": ["x"] * 17}, 400),
)


@dataclass(frozen=True, slots=True)
class QuietPoint:
    """The fleet after `requests` of them, nothing under way."""

    requests: int
    resident_bytes: dict[str, int]
    """By process."""

    @property
    def total_bytes(self) -> int:
        return sum(self.resident_bytes.values())


class Soak:
    """Sends the requests; the same `seed` sends the same ones."""

    def __init__(self, fleet: WatchedFleet, *, seed: int = 0) -> None:
        self.answers: Counter[str] = Counter()
        self._fleet = fleet
        self._random = random.Random(seed)

    async def run(
        self, laps: int, on_point: Callable[[QuietPoint], None] = lambda _: None
    ) -> list[QuietPoint]:
        """`laps` times a thousand requests; the memory before the first and after each."""
        points: list[QuietPoint] = []
        for lap in range(laps + 1):
            if lap:
                left = [None] * LAP_REQUESTS
                await asyncio.gather(*(self._take_turns(left) for _ in range(AT_ONCE)))
            self._fleet.wait_until_quiet()
            points.append(QuietPoint(lap * LAP_REQUESTS, self._fleet.resident_bytes()))
            on_point(points[-1])
        return points

    async def _take_turns(self, left: list[None]) -> None:
        while left:
            left.pop()
            self.answers[await self._one()] += 1

    async def _one(self) -> str:
        """One request; what became of it."""
        draw = self._random
        client = LeavingClient(self._fleet.url)
        await client.connect()
        try:
            kind = draw.random()
            if kind < INVALID_RATIO:
                path, fields, status = draw.choice(INVALID)
                await client.ask(path, {"model": TINY_NAME, "user": _word(draw), **fields})
                answer = await client.read()
                assert answer.status == status, (fields, answer)
                return "invalid"
            path, body = self._request()
            await client.ask(path, body)
            if kind < INVALID_RATIO + CANCELLED_RATIO:
                if draw.random() < 0.5:
                    await client.read(at_most=draw.randrange(1, 600))
                else:
                    await asyncio.sleep(draw.expovariate(1 / 0.02))
                return "cancelled"
            answer = await client.read()
            assert (answer.status, answer.complete) == (200, True), answer
            return "answered"
        finally:
            client.leave(draw.choice(list(Goodbye)))

    def _request(self) -> tuple[str, dict[str, Any]]:
        draw = self._random
        options: dict[str, Any] = {
            "model": TINY_NAME,
            "max_tokens": draw.randrange(1, 17),
            "stream": draw.random() < 0.5,
            "seed": draw.getrandbits(32),
        }
        words = min(1 + int(draw.expovariate(1 / 25)), MAX_WORDS)
        match draw.randrange(3):
            case 0:
                return COMPLETIONS, {**options, "prompt": draw.choices(range(32, 250), k=4 * words)}
            case 1:
                return COMPLETIONS, {**options, "prompt": _text(draw, words)}
            case _:
                messages = [{"role": "user", "content": _text(draw, words)}]
                return CHAT, {**options, "messages": messages}


def growth_bytes_per_lap(points: Sequence[QuietPoint], process: str = "", *, since: int = 1) -> float:
    """Slope of the memory after lap `since`, by least squares: of one process, or of all."""
    after = points[since:]
    sizes = [point.resident_bytes[process] if process else point.total_bytes for point in after]
    return linear_regression(range(len(after)), sizes).slope


@contextmanager
def soaked_fleet(home: Path) -> Iterator[WatchedFleet]:
    """Router and worker with 488 blocks, which a hundred requests fill.

    The router also remembers evicted blocks, a quarter of a million by default (46 MB): here no more than the
    first two hundred requests evict, so that it is full before anything is measured.
    """
    flags = ("--kv-cache-bytes", "4000000", "--max-running-sequences", str(AT_ONCE))
    ghosts = ("--ghost-blocks", "1024")
    with watched_fleet(home, tiny_served_model(home / "model"), *flags, router_flags=ghosts) as fleet:
        yield fleet


def _text(draw: random.Random, words: int) -> str:
    return " ".join(_word(draw) for _ in range(words))


def _word(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randrange(2, 10)))
