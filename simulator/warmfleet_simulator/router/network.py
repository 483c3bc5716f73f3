"""Delays between router and replicas, drawn from a seeded generator."""

import asyncio
import random
from typing import Final

LEAST_SECONDS: Final = 0.0002
MOST_SECONDS: Final = 0.001
"""One way within a cluster, with what sockets and event loops add."""


class Network:
    """Each message takes as long as is drawn for it; the messages of one stream stay in order."""

    def __init__(self, seed: int, *, least: float = LEAST_SECONDS, most: float = MOST_SECONDS) -> None:
        """Delays between `least` and `most`, in seconds, drawn evenly."""
        self._random = random.Random(seed)  # noqa: S311 - reproducible, no secret
        self._least, self._most = least, most

    async def deliver(self) -> None:
        """Wait for as long as one message takes."""
        await asyncio.sleep(self._random.uniform(self._least, self._most))
