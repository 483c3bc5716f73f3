"""python -m shares.vllm_alone MODEL: vLLM's `AsyncLLM` without a server answers prompts from standard input.

For the interpreter that has vLLM. A line of JSON has `prompts` (lists of token ids), `output_tokens`,
`temperature` and `top_p`. All prompts are answered at once, and a line of JSON has the seconds until the last
token, `wall`. Before the first one stands a line with `engine`: vLLM's version and dtype.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from shares.setups import VLLM
from warmfleet_runtime.processors import usable_cores
from warmfleet_worker.vllm_engine.arguments import engine_arguments, environment


async def answer(model: str) -> None:
    """Answer line after line, until there is none."""
    arguments = engine_arguments(VLLM.settings(model, threads=usable_cores()), on_cpu=True)
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def one(number: int, prompt: list[int], work: dict[str, Any]) -> None:
        parameters = SamplingParams(
            temperature=work["temperature"],
            top_p=work["top_p"],
            max_tokens=work["output_tokens"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for _ in llm.generate(tokens_input(prompt), parameters, f"{number}-{time.monotonic_ns()}"):
            pass

    print(json.dumps({"engine": {"vllm": vllm.__version__, "dtype": arguments["dtype"]}}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        work = json.loads(line)
        start = time.perf_counter()
        await asyncio.gather(*(one(number, prompt, work) for number, prompt in enumerate(work["prompts"])))
        print(json.dumps({"wall": time.perf_counter() - start}), flush=True)
    llm.shutdown()


if __name__ == "__main__":
    for variable, value in environment(VLLM.settings("", threads=usable_cores())).items():
        os.environ.setdefault(variable, value)
    asyncio.run(answer(sys.argv[1]))
