"""vLLM as a process that is measured, with compiled graphs, without server, router and processes of its own.

python -m warmfleet_cli.bench.engine.vllm_program MODEL DTYPE SEQUENCES TOKENS KV_BYTES

SEQUENCES is the most of a decode, TOKENS the longest of them. Runs in the environment of `make vllm`.
"""

import importlib
import itertools
import os
import sys

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import SPARE_TOKENS, Case

PIECE_TOKENS = 2048
"""Most tokens of a step: a prefill of so many is one."""


class VllmEngine:
    """An engine of vLLM; contexts are requests, whose prompts stay in its prefix cache between rounds."""

    variants = ["compiled"]  # noqa: RUF012 - as the protocol has it

    def __init__(self, model: str, dtype: str, sequences: int, tokens: int, kv_bytes: int) -> None:
        # Where our own tests import this module there is no such library.
        vllm = importlib.import_module("vllm")
        self._sampling = importlib.import_module("vllm.sampling_params")
        engine = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
        arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs(
            model=model,
            skip_tokenizer_init=True,
            dtype=dtype,
            enable_prefix_caching=True,
            max_model_len=tokens,
            max_num_seqs=sequences,
            max_num_batched_tokens=max(PIECE_TOKENS, sequences),
            kv_cache_memory_bytes=kv_bytes,
            async_scheduling=False,
            disable_log_stats=True,
        )
        self._engine = engine.from_engine_args(arguments)
        config = self._engine.vllm_config.model_config
        self.name = f"vLLM {vllm.__version__}"
        self.dtype = str(config.dtype).removeprefix("torch.")
        self._vocabulary: int = config.get_vocab_size()
        self._numbers = itertools.count()
        self._live: list[str] = []

    def prepare(self, case: Case, _variant: str) -> None:
        """Begin a request for each sequence of a decode, and compute their prompts."""
        self._abort()
        if case.kind == "prefill":
            return
        for sequence in range(case.batch):
            self._begin(self._prompt(case.context_tokens, sequence), SPARE_TOKENS)
        begun: set[str] = set()
        while len(begun) < case.batch:
            begun |= set(self._step())

    def step(self, case: Case, index: int) -> list[int]:
        """One step; of a prefill as many as its prompt takes, which is one of up to `PIECE_TOKENS`."""
        if case.kind == "prefill":
            # The number of a request makes its prompt: none of it is in the cache.
            self._begin(self._prompt(case.context_tokens, 1 + next(self._numbers)), 1)
            while not (tokens := self._step()):
                pass
            self._live.clear()
        else:
            tokens = self._step()
            if len(tokens) != case.batch:
                raise RuntimeError(f"step {index} computed {len(tokens)} of {case.batch} sequences")
        return list(tokens.values())

    def reset(self, _case: Case) -> None:
        """End the requests."""
        self._abort()

    def _begin(self, prompt: list[int], tokens: int) -> None:
        parameters = self._sampling.SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._sampling.RequestOutputKind.DELTA,
        )
        name = str(next(self._numbers))
        self._live.append(self._engine.add_request(name, {"prompt_token_ids": prompt}, parameters))

    def _step(self) -> dict[str, int]:
        """The token of each request that got one."""
        return {
            output.request_id: output.outputs[0].token_ids[-1]
            for output in self._engine.step()
            if output.outputs[0].token_ids
        }

    def _abort(self) -> None:
        if self._live:
            self._engine.abort_request(self._live, internal=True)
            self._live.clear()

    def _prompt(self, tokens: int, number: int) -> list[int]:
        """Prompts of different numbers differ in their first token already."""
        return [1 + (7 * index + 131 * number) % (self._vocabulary - 1) for index in range(tokens)]


def main() -> int:
    model, dtype, sequences, tokens, kv_bytes = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # or a step would wait for another process

    def make() -> CaseEngine:
        return VllmEngine(model, dtype, int(sequences), int(tokens), int(kv_bytes))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
