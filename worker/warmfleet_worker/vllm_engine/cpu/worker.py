"""vLLM's worker on a CPU, by the name that its option `worker_cls` takes: `NAME`."""

from typing import Any, Final

_CLASS: Final = "SeededCpuWorker"
NAME: Final = f"{__name__}.{_CLASS}"


def seeded(worker: type[Any]) -> type[Any]:
    """`worker`, which samples for a prompt that a step computes in part without its seeded generator.

    Such a token is discarded. vLLM moves the generator back by its offset, which a CPU's generator does not
    have: one prompt with a seed that did not fit into a step would end the engine core. A row without a
    generator is sampled by the common one, and its own stays where it was.
    """

    class SeededCpuWorker(worker):  # type: ignore[misc]
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
