"""vLLM's executor on a CPU, by the name that its option `distributed_executor_backend` takes: `NAME`."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Final

_CLASS: Final = "TimedSingleProcessExecutor"
NAME: Final = f"{__name__}.{_CLASS}"


class LateResult(Future[Any]):
    """Of a call that is made when its result is asked for. For one thread; without a time limit."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        """What the call returns or raises, at the first time and every later one.

        Raises:
            ValueError: a time limit is given, which the engine core never does.
        """
        if timeout is not None:
            raise ValueError("a call in the thread that waits for it has no time limit")
        if not self.done():
            try:
                self.set_result(self._call())
            except Exception as error:  # noqa: BLE001 - raised below, each time it is asked for
                self.set_exception(error)
        return super().result()


def timed(executor: type[Any]) -> type[Any]:
    """`executor`, which computes in the engine core's own process, and does so when the result is asked for.

    The engine core measures a step's time there. vLLM's own computes before it: the step would seem to take
    the time of its sampling alone, and routers would take prompts for free. Without asynchronous scheduling,
    which vLLM has on no CPU, nothing happens in between.
    """

    class TimedSingleProcessExecutor(executor):  # type: ignore[misc]
        __qualname__ = _CLASS  # by which the engine core's process finds it

        def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:  # noqa: FBT001, FBT002
            if not non_block:
                return super().execute_model(scheduler_output)
            return LateResult(partial(super().execute_model, scheduler_output))

    return TimedSingleProcessExecutor


def __getattr__(name: str) -> type[Any]:
    if name != _CLASS:
        raise AttributeError(name)
    return _timed_uniproc()


@cache
def _timed_uniproc() -> type[Any]:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return timed(UniProcExecutor)
