"""Keeps what vLLM announces until the step that computes it has ended. Pure."""

from collections import deque
from collections.abc import Iterator

from warmfleet_worker.vllm_engine.kv_events import Event


class Announcements:
    """Batches of events in order, each due when its blocks are computed.

    vLLM sends a batch with the end of a step. It has what was allocated up to then: with asynchronous
    scheduling also for the steps that were scheduled while that one ran. A batch and the statistics of the
    step that sent it come over two sockets, in either order: hence one step more.
    """

    def __init__(self, steps_ahead: int) -> None:
        """`steps_ahead`: steps that are scheduled before the one in flight has ended."""
        self._held_steps = steps_ahead + 1 if steps_ahead else 0
        self._steps = 0
        self._waiting: deque[tuple[int, list[Event]]] = deque()

    def add(self, events: list[Event]) -> None:
        """A batch has arrived."""
        self._waiting.append((self._steps + self._held_steps, events))

    def end_step(self) -> None:
        """A step has ended, by vLLM's statistics."""
        self._steps += 1

    def take(self, *, is_idle: bool) -> Iterator[list[Event]]:
        """The batches that are due; all of them while nothing is computed."""
        while self._waiting and (is_idle or self._waiting[0][0] <= self._steps):
            yield self._waiting.popleft()[1]
