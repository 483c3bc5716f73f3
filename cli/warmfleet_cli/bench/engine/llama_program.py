"""llama.cpp as a process that is measured; the fastest number of threads counts.

python -m warmfleet_cli.bench.engine.llama_program GGUF SEQUENCES

SEQUENCES is JSON: the most sequences of a decode at each context.

Runs in the environment of `make peers`, which has llama-cpp-python and nothing of ours but this folder.
"""

import ctypes
import importlib
import json
import os
import sys
from typing import Any

import numpy as np

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import SPARE_TOKENS, Case

PIECE_TOKENS = 512


class LlamaEngine:
    """A model and one context object per length of context, with keys and values of 16 bits."""

    dtype = "bfloat16"

    def __init__(self, path: str, sequences: dict[str, int]) -> None:
        # Where our own tests import this module there is no such library.
        llama = self._llama = importlib.import_module("llama_cpp")
        self._no_log = llama.llama_log_callback(lambda _level, _text, _user: None)
        llama.llama_log_set(self._no_log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.name = f"llama.cpp (llama-cpp-python {llama.__version__})"
        cores = len(os.sched_getaffinity(0))
        self.variants = [str(n) for n in sorted({cores, *(1 << p for p in range(12) if 1 << p < cores)})]
        self._sequences = sequences
        self._model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not self._model:
            raise RuntimeError("llama.cpp cannot load the model")
        self._vocabulary: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._contexts: dict[tuple[str, int], Any] = {}
        self._batch = llama.llama_batch_init(PIECE_TOKENS, 0, 1)

    def prepare(self, case: Case, variant: str) -> None:
        """Make the context object of this length: one sequence is computed, the others are copies of it."""
        key = (case.kind, case.context_tokens)
        if key not in self._contexts:
            self._contexts[key] = self._filled_context(case)
        self._llama.llama_set_n_threads(self._contexts[key], int(variant), int(variant))

    def step(self, case: Case, index: int) -> list[int]:
        """One decode call and the most likely token of each sequence."""
        context = self._contexts[case.kind, case.context_tokens]
        if case.kind == "prefill":
            self._llama.llama_memory_clear(self._llama.llama_get_memory(context), False)
            for first in range(0, case.context_tokens, PIECE_TOKENS):
                last = min(first + PIECE_TOKENS, case.context_tokens)
                self._decode(
                    context,
                    [(self._token(position), position, 0) for position in range(first, last)],
                    [last - first - 1] if last == case.context_tokens else [],
                )
            return [self._argmax(context, last - first - 1)]
        token = 1 + index % (self._vocabulary - 1)
        position = case.context_tokens + index
        rows = list(range(case.batch))
        self._decode(context, [(token, position, sequence) for sequence in rows], rows)
        return [self._argmax(context, row) for row in rows]

    def reset(self, case: Case) -> None:
        """Cut every sequence to the case's context."""
        if case.kind == "decode":
            memory = self._llama.llama_get_memory(self._contexts[case.kind, case.context_tokens])
            for sequence in range(case.batch):
                self._llama.llama_memory_seq_rm(memory, sequence, case.context_tokens, -1)

    def _filled_context(self, case: Case) -> Any:
        sequences = 1 if case.kind == "prefill" else self._sequences[str(case.context_tokens)]
        parameters = self._llama.llama_context_default_params()
        parameters.n_seq_max = sequences
        parameters.n_ctx = sequences * (case.context_tokens + SPARE_TOKENS)
        parameters.n_batch = parameters.n_ubatch = PIECE_TOKENS
        parameters.kv_unified = False
        parameters.no_perf = True
        context = self._llama.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context of this length")
        cores = int(self.variants[-1])
        self._llama.llama_set_n_threads(context, cores, cores)
        if case.kind == "decode":
            for first in range(0, case.context_tokens, PIECE_TOKENS):
                piece = range(first, min(first + PIECE_TOKENS, case.context_tokens))
                self._decode(context, [(self._token(position), position, 0) for position in piece], [])
            memory = self._llama.llama_get_memory(context)
            for sequence in range(1, sequences):
                self._llama.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        return context

    def _decode(self, context: Any, rows: list[tuple[int, int, int]], wanted: list[int]) -> None:
        """Compute rows of (token, position, sequence), with the logits of the `wanted` ones."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = 0
        for row in wanted:
            batch.logits[row] = 1
        status = self._llama.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode failed with {status}")

    def _argmax(self, context: Any, row: int) -> int:
        logits = self._llama.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def _token(self, position: int) -> int:
        return 1 + (7 * position) % (self._vocabulary - 1)


def main() -> int:
    def make() -> CaseEngine:
        return LlamaEngine(sys.argv[1], json.loads(sys.argv[2]))

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
