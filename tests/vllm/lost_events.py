"""More cache events than vLLM's publisher keeps, by its own publisher: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/lost_events.py

Writes one line of JSON: what `EventSocket` gave of batches that were sent before it listened, once as many
as the publisher keeps for replays and once more than that.
"""

import asyncio
import json
import sys
from pathlib import Path

import msgspec
from vllm.distributed.kv_events import AllBlocksCleared, KVEventBatch, ZmqEventPublisher

from warmfleet_worker.vllm_engine.event_socket import EventSocket
from warmfleet_worker.vllm_engine.resident import EventsLostError
from warmfleet_worker.vllm_engine.socket_folder import socket_folder

KEPT = 8
SECONDS = 60


async def follow(missed: int) -> list[object]:
    """Times of the batches that arrive after `missed` were not received, and "lost" for each gap."""
    with socket_folder() as folder, EventSocket(Path(folder)) as events:
        publisher = ZmqEventPublisher(
            0, endpoint=events.endpoint, replay_endpoint=events.replay_endpoint, buffer_steps=KEPT
        )
        try:
            for number in range(missed):
                publisher.publish(batch(number))
            # A thread sends them, and each that is missed while it is at it would be a gap of its own.
            publisher._event_queue.join()
            seen: list[object] = []

            async def receive() -> None:
                while True:
                    try:
                        async for payload in events.batches():
                            seen.append(msgspec.msgpack.decode(payload)[0])  # noqa: PERF401 - read while they come
                    except EventsLostError:
                        seen.append("lost")

            receiving = asyncio.create_task(receive())
            # A subscriber that has just connected gets nothing for a moment: until one arrives.
            number = missed
            async with asyncio.timeout(SECONDS):
                while not any(isinstance(one, float) and one >= missed for one in seen):
                    publisher.publish(batch(number))
                    number += 1
                    await asyncio.sleep(0.2)
            receiving.cancel()
            return seen
        finally:
            publisher.shutdown()


def batch(number: int) -> KVEventBatch:
    return KVEventBatch(ts=float(number), events=[AllBlocksCleared()])


async def main() -> None:
    result = {"few": await follow(2), "many": await follow(10 * KEPT), "kept": KEPT}
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
