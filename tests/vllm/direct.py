"""`AsyncLLM` without a server, for comparison: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/direct.py MODEL

For each line of input, prompts as a JSON list of lists of token ids and the number of output tokens, it
answers all prompts at once and writes a line of JSON: the seconds until the last token.
"""

import asyncio
import json
import os
import sys
import time

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments, environment


async def answer(model: str) -> None:
    settings = EngineSettings(
        model_path=model,
        block_size_tokens=32,
        max_model_length_tokens=2048,
        max_running_sequences=8,
        kv_cache_bytes=256 * 2**20,
        threads=os.cpu_count() or 1,
    )
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(settings, on_cpu=True)))

    async def one(number: int, prompt: list[int], output_tokens: int) -> None:
        parameters = SamplingParams(
            temperature=0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for _ in llm.generate(tokens_input(prompt), parameters, f"{number}-{time.monotonic_ns()}"):
            pass

    write("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = json.loads(line)
        start = time.perf_counter()
        await asyncio.gather(
            *(one(number, prompt, work["output_tokens"]) for number, prompt in enumerate(work["prompts"]))
        )
        write(json.dumps({"seconds": time.perf_counter() - start}))
    llm.shutdown()


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for variable, value in environment(EngineSettings(model_path="", threads=os.cpu_count() or 1)).items():
        os.environ.setdefault(variable, value)
    asyncio.run(answer(sys.argv[1]))
