"""A stand-in for the package `vllm`, to be put into `sys.modules`: what `vllm_engine.llm` imports of it.

Behind its `AsyncLLM` computes a `StandInVllm`, in vLLM's own types and errors. The shapes are those of the
recording that `make check-vllm` compares with the real package.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from warmfleet_testing.vllm.stand_in import StandInVllm
from warmfleet_testing.vllm.wire import Wire
from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.outputs import ModelFacts, Output, RefusedRequestError, VllmDiedError


class EngineDeadError(Exception):
    """The engine core has ended."""


class EngineGenerateError(Exception):
    """One request failed."""


class SamplingParams:
    """Keeps what it is given; refuses a temperature as vLLM does."""

    def __init__(self, **fields: Any) -> None:
        if fields.get("temperature", 0) < 0:
            raise ValueError("temperature must be non-negative")
        self.fields = fields


@dataclass
class Logprob:
    """Of one candidate token."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One of a request's choices."""

    token_ids: Sequence[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None


@dataclass
class RequestOutput:
    """What one request got."""

    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    num_cached_tokens: int | None


@dataclass
class SchedulerIterationDetails:
    """Of a step that computed something."""

    num_ctx_tokens: int
    num_generation_requests: int
    elapsed_ms: float


@dataclass
class SchedulerStats:
    """Of a step."""

    num_running_reqs: int
    kv_cache_usage: float
    iteration_details: SchedulerIterationDetails | None


@dataclass
class IterationStats:
    """Of the outputs of a step."""

    num_preempted_reqs: int = 0


class Arguments:
    """`AsyncEngineArgs`: keeps what it is given."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.add_argument("--seed", type=int, default=0)
        return parser


class Core(StandInVllm):
    """The engine core: what it computes, reported as vLLM's statistics and over its wire."""

    def __init__(self, model: ModelFacts, wire: Wire) -> None:
        super().__init__(model)
        self.loggers: list[Any] = []
        self.given: list[dict[str, Any]] = []
        """Sampling parameters of each request."""
        self.preempted_sequences = 0
        self._wire = wire

    def report(self, step: StepStatistics) -> None:
        details = SchedulerIterationDetails(
            step.prefill_tokens, step.decode_sequences, step.step_seconds * 1000
        )
        statistics = SchedulerStats(step.running_sequences, step.used_ratio, details)
        for logger in self.loggers:
            logger.record(statistics, IterationStats(self.preempted_sequences), None, 0)

    def publish(self, batch: bytes) -> None:
        self._wire.publish(batch)


class AsyncLLM:
    """Requests in vLLM's types, to the core."""

    def __init__(self, core: Core, arguments: Arguments) -> None:
        self.core = core
        self.arguments = arguments
        self.vllm_config = _config(core.facts)
        self.has_shut_down = False

    @property
    def errored(self) -> bool:
        return self.core.is_dead

    async def generate(
        self,
        prompt: Mapping[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self.core.is_dead:
            raise EngineDeadError
        tokens = prompt["prompt_token_ids"]
        assert isinstance(tokens, list)
        self.core.given.append(sampling_params.fields)
        outputs = self.core.generate(
            request_id, tokens, prompt["cache_salt"], sampling_params.fields, priority
        )
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield _request_output(output)
        except VllmDiedError:
            raise EngineDeadError from None
        except RefusedRequestError as error:
            raise EngineGenerateError(str(error)) from None

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        if self.core.is_dead:
            raise EngineDeadError
        assert reset_running_requests
        await self.core.clear_cache()
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        assert timeout
        self.has_shut_down = True


@dataclass
class Package:
    """The installed stand-in: the core that it computes with, and what was made of it."""

    core: Core
    wire: Wire
    is_cpu: bool = True
    made: list[AsyncLLM] = field(default_factory=list)
    start: Callable[[], None] = lambda: None
    """Called where vLLM starts its processes; raises where that fails."""

    def from_engine_args(self, arguments: Arguments, stat_loggers: Sequence[Callable[..., Any]]) -> AsyncLLM:
        asyncio.get_running_loop()
        self.start()
        self.core.loggers = [make(_config(self.core.facts), 0) for make in stat_loggers]
        for logger in self.core.loggers:
            logger.log_engine_initialized()
        self.made.append(AsyncLLM(self.core, arguments))
        return self.made[-1]


def install(monkeypatch: pytest.MonkeyPatch, model: ModelFacts, wire: Wire) -> Package:
    """Put the stand-in, and its ZMQ, into `sys.modules` until the test ends."""
    package = Package(Core(model, wire), wire)
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "of vLLM", registry=registry).set(3)
    Gauge("process_open_fds", "of the process", registry=registry).set(4)
    platform = SimpleNamespace(is_cpu=lambda: package.is_cpu, device_type=model.device)
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": model.vllm_version, "SamplingParams": SamplingParams},
        "vllm.config": {"KVEventsConfig": SimpleNamespace},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": Arguments},
        "vllm.inputs": {"tokens_input": _tokens_input},
        "vllm.platforms": {"current_platform": platform},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta")},
        "vllm.utils": {},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        "vllm.utils.torch_utils": {
            "kv_cache_dtype_str_to_dtype": lambda dtype, _: SimpleNamespace(itemsize=_BYTES[dtype])
        },
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": package},
        "vllm.v1.engine.exceptions": {
            "EngineDeadError": EngineDeadError,
            "EngineGenerateError": EngineGenerateError,
        },
        "vllm.v1.metrics": {},
        "vllm.v1.metrics.loggers": {"StatLoggerBase": object},
        "vllm.v1.metrics.prometheus": {"get_prometheus_registry": lambda: registry},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    wire.install(monkeypatch)
    return package


_BYTES = {"auto": 4, "fp8": 1}


def _tokens_input(prompt_token_ids: list[int], cache_salt: str | None = None) -> dict[str, Any]:
    return {"prompt_token_ids": prompt_token_ids, "cache_salt": cache_salt}


def _request_output(output: Output) -> RequestOutput:
    logprobs = [_logprobs(position) for position in output.logprobs]
    prompt_logprobs = [_logprobs(position) for position in output.prompt_logprobs]
    choice = CompletionOutput(output.token_ids, logprobs or None, output.finish_reason or None)
    return RequestOutput(
        [choice], [None, *prompt_logprobs] if prompt_logprobs else None, output.cached_tokens
    )


def _logprobs(position: Mapping[int, Any]) -> dict[int, Logprob]:
    return {token_id: Logprob(score.logprob, score.rank) for token_id, score in position.items()}


def _config(model: ModelFacts) -> Any:
    """Of a model with 3 layers of 2 key heads of 16 values."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            get_head_size=lambda: 16,
            get_num_layers=lambda _: 3,
            get_total_num_kv_heads=lambda: 2,
            get_vocab_size=lambda: model.vocabulary_size,
            get_sliding_window=lambda: model.window_tokens or None,
            max_model_len=model.max_model_length_tokens,
            dtype=f"torch.{model.dtype}",
            try_get_generation_config=lambda: {"eos_token_id": list(model.end_token_ids)},
            hf_text_config=SimpleNamespace(eos_token_id=model.vocabulary_size - 1),
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=model.total_blocks + 1, block_size=model.block_size_tokens, cache_dtype="auto"
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=model.max_batched_tokens,
            max_num_seqs=model.max_running_sequences,
            async_scheduling=bool(model.steps_ahead),
        ),
        parallel_config=SimpleNamespace(),
    )
