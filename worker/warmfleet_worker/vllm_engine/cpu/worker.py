"""vLLM's worker on a CPU, by the name that its option `worker_cls` takes: `NAME`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

_CLASS: Final = "SeededCpuWorker"
NAME: Final = f"{__name__}.{_CLASS}"
PROMPT_LOGPROBS: Final = "_get_prompt_logprobs_dict"
"""A method of vLLM's model runner."""
SLICE_BYTES: Final = 64 * 2**20
"""Of a prompt's logits that are in memory at once; they are float32, and copied twice."""


def in_slices(runner: Any, tokens: int) -> Callable[[Any, Mapping[str, int]], dict[str, Any]]:
    """The runner's own method for the log probabilities of prompts, for `tokens` of one prompt at a time.

    It takes a prompt's next tokens, as far as a step has computed them, and collects. All of a step at once
    have a row of the whole vocabulary each: one long prompt would end the engine core for want of memory.
    """
    at_once = getattr(runner, PROMPT_LOGPROBS)

    def slices(hidden_states: Any, num_scheduled_tokens: Mapping[str, int]) -> dict[str, Any]:
        complete: dict[str, Any] = {}
        for request_id in list(runner.num_prompt_logprobs):
            if request_id not in num_scheduled_tokens:
                continue
            request, computed = runner.requests[request_id], num_scheduled_tokens[request_id]
            before = request.num_computed_tokens
            try:
                for start in range(0, computed, tokens):
                    # It stops by itself when the prompt is complete.
                    request.num_computed_tokens = before + start
                    one = {request_id: min(tokens, computed - start)}
                    complete.update(at_once(hidden_states[start:], one))
            finally:
                request.num_computed_tokens = before
        return complete

    return slices


def seeded(worker: type[Any]) -> type[Any]:
    """`worker`, without two ways in which one request would end the engine core.

    The log probabilities of a prompt are computed by slices. And for a prompt that a step computes in part it
    samples without the request's seeded generator: such a token is discarded, and vLLM moves the generator
    back by its offset, which a CPU's generator does not have. A row without a generator is sampled by the
    common one, and its own stays where it was.
    """

    class SeededCpuWorker(worker):  # type: ignore[misc]
        def init_device(self) -> None:
            super().init_device()
            runner = self.model_runner
            if hasattr(runner, PROMPT_LOGPROBS):  # vLLM's newer runner has slices of its own
                tokens = max(SLICE_BYTES // (4 * runner.model_config.get_vocab_size()), 1)
                setattr(runner, PROMPT_LOGPROBS, in_slices(runner, tokens))

        def sample_tokens(self, grammar_output: Any) -> Any:
            runner = self.model_runner
            generators = runner.input_batch.generators
            discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
            held = {row: generators.pop(row) for row in discarded if row in generators}
            try:
                return super().sample_tokens(grammar_output)
            finally:
                generators.update(held)

    return SeededCpuWorker


def __getattr__(name: str) -> type[Any]:
    if name != _CLASS:
        raise AttributeError(name)
    from vllm.v1.worker.cpu_worker import CPUWorker

    return seeded(CPUWorker)
