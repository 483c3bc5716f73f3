"""Delays between router and replicas, drawn from a seeded generator."""

import asyncio
import random
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Delays:
    """What a message takes one way, drawn evenly between the two."""

    least_seconds: float
    most_seconds: float


CLUSTER_DELAYS: Final = Delays(0.0002, 0.001)
"""One way within a cluster, with what sockets and event loops add."""


class Network:
    """Each message takes as long as is drawn for it; the messages of one stream stay in order."""

    def __init__(self, seed: int, delays: Delays = CLUSTER_DELAYS) -> None:
        self._random = random.Random(seed)  # noqa: S311 - reproducible, no secret
        self._delays = delays

    async def deliver(self) -> None:
        """Wait for as long as one message takes."""
        await asyncio.sleep(self._random.uniform(self._delays.least_seconds, self._delays.most_seconds))
