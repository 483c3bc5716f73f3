"""Compares `ResidentBlocks` with the pool of vLLM's engine core itself: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/pool.py MODEL REQUESTS

The engine core runs in this process, so that its pool can be read; the events still come over its socket.
Writes one line of JSON: blocks that differ, and what was computed.
"""

import asyncio
import json
import os
import random
import sys
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import tokens_input
from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash
from vllm.v1.engine.llm_engine import LLMEngine

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments, environment
from warmfleet_worker.vllm_engine.event_socket import EventSocket
from warmfleet_worker.vllm_engine.kv_events import decode_batch
from warmfleet_worker.vllm_engine.llm import events_config
from warmfleet_worker.vllm_engine.resident import ResidentBlocks, salt_text
from warmfleet_worker.vllm_engine.socket_folder import socket_folder

BLOCK_TOKENS = 32
TOTAL_BLOCKS = 48
LIVE = 6
IDENTITY = CacheIdentity(bytes(16))
SALTS = (b"", b"one", b"two")


def prompts(requests: int) -> list[tuple[bytes, list[int]]]:
    """Salt and tokens; every second one begins as an earlier one did."""
    draw = random.Random(5)
    prefixes = [
        [draw.randrange(3000, 9000) for _ in range(BLOCK_TOKENS * draw.randint(1, 4))] for _ in range(30)
    ]
    return [
        (
            draw.choice(SALTS),
            (draw.choice(prefixes) if draw.random() < 0.5 else [])
            + [draw.randrange(3000, 9000) for _ in range(draw.randint(1, 70))],
        )
        for _ in range(requests)
    ]


async def compare(model: str, requests: int) -> dict[str, Any]:
    settings = EngineSettings(
        model_path=model,
        block_size_tokens=BLOCK_TOKENS,
        max_model_length_tokens=512,
        max_running_sequences=LIVE,
        threads=2,
    )
    arguments = engine_arguments(settings, on_cpu=True) | {"num_gpu_blocks_override": TOTAL_BLOCKS + 1}
    resident = ResidentBlocks(IDENTITY, BLOCK_TOKENS, TOTAL_BLOCKS)
    work = prompts(requests)
    stored = set()
    with socket_folder() as folder, EventSocket(folder) as events:

        async def follow() -> None:
            async for payload in events.batches():
                resident.apply(decode_batch(payload))
                _, new, _ = resident.changes.take()
                stored.update(new)

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        config = events_config(events.endpoint, events.replay_endpoint)
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments, kv_events_config=config))
        pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        waiting, live, cached_tokens = list(enumerate(work)), 0, 0
        while waiting or live:
            while waiting and live < LIVE:
                number, (salt, tokens) = waiting.pop(0)
                parameters = SamplingParams(
                    max_tokens=1 + number % 3, detokenize=False, ignore_eos=True, seed=number
                )
                engine.add_request(str(number), tokens_input(tokens, cache_salt=salt_text(salt)), parameters)
                live += 1
            for output in engine.step():
                if output.finished:
                    live -= 1
                    cached_tokens += output.num_cached_tokens or 0
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)
        following.cancel()
        copies = {
            maybe_convert_block_hash(get_block_hash(key)): len(blocks) if isinstance(blocks, dict) else 1
            for key, blocks in pool.cached_block_hash_to_block._cache.items()
        }
        known = {
            block_hash
            for salt, tokens in work
            for block_hash in block_hashes(block_root(IDENTITY, salt=salt), tokens, BLOCK_TOKENS)
        }
        mirrored = {name: block.copies for name, block in resident._blocks.items()}
        return {
            "differing_blocks": len(set(copies.items()) ^ set(mirrored.items())),
            "resident_blocks": len(copies),
            "copies": sum(copies.values()),
            "evicted_blocks": resident.evicted_blocks,
            "cached_tokens": cached_tokens,
            "prompt_blocks_never_stored": len(known - stored),
            "requests": requests,
        }


def main() -> None:
    # Read when an engine is made, not at the import.
    os.environ.update(environment(EngineSettings(model_path="", threads=2)))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    result = asyncio.run(compare(sys.argv[1], int(sys.argv[2])))
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
