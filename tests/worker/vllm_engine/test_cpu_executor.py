"""A step of vLLM on a CPU, which is computed while the engine core measures its time."""

import pytest

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments
from warmfleet_worker.vllm_engine.cpu.executor import NAME, timed


class Executor:
    """As vLLM's: computes at once, whether it may block or not."""

    def __init__(self):
        self.computed = []

    def execute_model(self, scheduler_output, non_block=False):  # noqa: ARG002
        self.computed.append(scheduler_output)
        if scheduler_output == "fails":
            raise OSError(scheduler_output)
        return f"tokens of {scheduler_output}"


def test_a_step_is_computed_when_its_result_is_asked_for_and_once():
    executor = timed(Executor)()

    result = executor.execute_model("a", non_block=True)
    assert executor.computed == []

    assert result.result() == "tokens of a"
    assert result.result() == "tokens of a"
    assert executor.computed == ["a"]


def test_a_step_that_may_block_is_computed_at_once():
    executor = timed(Executor)()
    assert executor.execute_model("a") == "tokens of a"


def test_a_step_that_fails_raises_its_error_each_time_it_is_asked_for():
    executor = timed(Executor)()
    result = executor.execute_model("fails", non_block=True)
    for _ in range(2):
        with pytest.raises(OSError, match="fails"):
            result.result()
    assert executor.computed == ["fails"]


def test_its_name_is_the_one_that_vllm_is_given():
    name = engine_arguments(EngineSettings(model_path="/m", block_size_tokens=32), on_cpu=True)[
        "distributed_executor_backend"
    ]
    made = timed(Executor)
    assert name == f"{made.__module__}.{made.__qualname__}" == NAME
