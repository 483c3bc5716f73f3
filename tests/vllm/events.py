"""Records vLLM's cache events for `tests/worker/vllm_engine`: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/events.py MODEL tests/worker/vllm_engine/recorded_events.json

MODEL is any folder that vLLM loads, with a vocabulary above 370, as `tests/vllm/pool.py` takes. The engine
core runs in this process; the batches come over its socket, and are written as JSON, one a line: of a salted
prompt of 100 tokens, of two equal ones of 70 at once that generate 30 each (the second batch has their third
block), of one of 40, and of one of 900 after a reset of the cache.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import tokens_input
from vllm.v1.engine.llm_engine import LLMEngine

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments, environment
from warmfleet_worker.vllm_engine.event_socket import EventSocket
from warmfleet_worker.vllm_engine.llm import events_config
from warmfleet_worker.vllm_engine.resident import salt_text
from warmfleet_worker.vllm_engine.socket_folder import socket_folder

BLOCK_TOKENS = 32
TOTAL_BLOCKS = 39
SALT = b"t1"
BATCHES = 5
SECONDS = 60


async def record(model: str) -> list[Any]:
    """Every batch, decoded."""
    settings = EngineSettings(
        model_path=model, block_size_tokens=BLOCK_TOKENS, max_model_length_tokens=1024, threads=1
    )
    arguments = engine_arguments(settings, on_cpu=True) | {"num_gpu_blocks_override": TOTAL_BLOCKS + 1}
    batches: list[Any] = []
    with socket_folder() as folder, EventSocket(folder) as events:

        async def follow() -> None:
            async for payload in events.batches():
                batches.append(msgspec.msgpack.decode(payload))
                if len(batches) == BATCHES:
                    return

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.1)  # it connects before the engine has its first event
        config = events_config(events.endpoint, events.replay_endpoint)
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments, kv_events_config=config))
        compute(engine, list(range(100, 200)), tokens=1, salt=SALT)
        compute(engine, list(range(300, 370)), tokens=30, copies=2)
        compute(engine, list(range(100, 140)), tokens=1)
        engine.reset_prefix_cache()
        compute(engine, [7] * 900, tokens=1)
        await asyncio.wait_for(following, SECONDS)
    return batches


def compute(engine: LLMEngine, prompt: list[int], *, tokens: int, salt: bytes = b"", copies: int = 1) -> None:
    """Answer a prompt, `copies` times at once."""
    for number in range(copies):
        parameters = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True)
        inputs = tokens_input(prompt, cache_salt=salt_text(salt))
        engine.add_request(f"{len(prompt)}-{number}", inputs, parameters)
    while engine.has_unfinished_requests():
        engine.step()


def main() -> None:
    # Read when an engine is made, not at the import.
    os.environ.update(environment(EngineSettings(model_path="", threads=1)))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    batches = asyncio.run(record(sys.argv[1]))
    lines = ",\n".join(json.dumps(batch) for batch in batches)
    Path(sys.argv[2]).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
