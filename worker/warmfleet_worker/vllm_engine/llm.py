"""vLLM's `AsyncLLM` as the loop uses it.

vLLM is imported in functions: the module itself is imported, and checked, where it is not installed.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from warmfleet_contracts.metrics import VLLM_PREFIX
from warmfleet_runtime.memory import importing, memory_limit_bytes
from warmfleet_worker.model.end_tokens import known_end_tokens
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments
from warmfleet_worker.vllm_engine.cpu import worker
from warmfleet_worker.vllm_engine.extra_arguments import with_extra_arguments
from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.outputs import (
    ClearDeclinedError,
    ModelFacts,
    Output,
    VllmDiedError,
)
from warmfleet_worker.vllm_engine.refusals import request_error
from warmfleet_worker.vllm_engine.scores import SCORES_BYTES, Position, Score, scores_bytes
from warmfleet_worker.vllm_engine.start_failures import Sizes, require_memory
from warmfleet_worker.vllm_engine.versions import check_version


def import_libraries() -> None:
    """Import vLLM, which takes a good part of its start.

    Raises:
        VllmVersionError: another vLLM is installed than this release works with; it may have other modules.
        ModuleNotFoundError: none is installed.
    """
    with contextlib.suppress(PackageNotFoundError):
        check_version(version("vllm"))
    with importing():
        import vllm.v1.engine.async_llm  # noqa: F401


class VllmEngine:
    """An `AsyncLLM` and its processes. Make it inside a running event loop, after `import_libraries`."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        endpoint: str,
        replay_endpoint: str,
    ) -> None:
        """Start vLLM's processes and load the model; this blocks for a minute or more.

        Raises:
            UnfitSettingsError: vLLM cannot compute with the settings here, or has too little memory.
            ValueError, RuntimeError: vLLM refuses the model or the settings.
        """
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import StatLoggerBase

        self.steps: asyncio.Queue[StepStatistics] = asyncio.Queue()
        steps = self.steps
        if current_platform.is_cpu():
            require_memory(Sizes.of(settings, memory_limit_bytes()))
        parser = FlexibleArgumentParser(prog="vLLM", usage="", add_help=False, allow_abbrev=False)
        arguments = AsyncEngineArgs(
            **with_extra_arguments(
                engine_arguments(settings, on_cpu=current_platform.is_cpu()),
                settings.extra_arguments,
                AsyncEngineArgs.add_cli_args(parser),
            ),
            kv_events_config=events_config(endpoint, replay_endpoint) if settings.prefix_caching else None,
        )

        class Statistics(StatLoggerBase):  # type: ignore[misc]
            """Passes each step's statistics on."""

            def __init__(self, vllm_config: object, engine_index: int = 0) -> None: ...

            def record(
                self,
                scheduler_stats: Any,
                iteration_stats: Any,
                mm_cache_stats: object = None,  # noqa: ARG002 - vLLM passes it
                engine_idx: int = 0,  # noqa: ARG002 - vLLM passes it
            ) -> None:
                if scheduler_stats is not None:
                    steps.put_nowait(_statistics(scheduler_stats, iteration_stats))

            def log_engine_initialized(self) -> None: ...

        self._llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[Statistics])

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        import vllm
        from vllm.platforms import current_platform
        from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

        config = self._llm.vllm_config
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        kv_dtype = kv_cache_dtype_str_to_dtype(cache.cache_dtype, model)
        head_bytes = model.get_head_size() * kv_dtype.itemsize
        layers = model.get_num_layers(config.parallel_config)
        vocabulary_size = model.get_vocab_size()
        end_tokens = model.try_get_generation_config().get("eos_token_id")
        if end_tokens is None:
            end_tokens = getattr(model.hf_text_config, "eos_token_id", None)
        return ModelFacts(
            vllm_version=vllm.__version__,
            # One of them is a placeholder.
            total_blocks=cache.num_gpu_blocks - 1,
            block_size_tokens=cache.block_size,
            max_model_length_tokens=model.max_model_len,
            max_batched_tokens=scheduler.max_num_batched_tokens,
            max_running_sequences=scheduler.max_num_seqs,
            dtype=str(model.dtype).removeprefix("torch."),
            device=current_platform.device_type,
            end_token_ids=list(known_end_tokens(end_tokens, vocabulary_size)),
            vocabulary_size=vocabulary_size,
            window_tokens=model.get_sliding_window() or 0,
            kv_bytes_per_token=2 * layers * model.get_total_num_kv_heads() * head_bytes,
            steps_ahead=1 if scheduler.async_scheduling else 0,
            most_scored_tokens=None
            if _scores_by_slices(config)
            else SCORES_BYTES // scores_bytes(1, vocabulary_size),
        )

    @property
    def is_dead(self) -> bool:
        return bool(self._llm.errored)

    async def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        salt: str | None,
        sampling: Mapping[str, Any],
        priority: int,
    ) -> AsyncGenerator[Output, None]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            parameters = SamplingParams(**sampling, output_kind=RequestOutputKind.DELTA)
            outputs = self._llm.generate(
                tokens_input(list(prompt), cache_salt=salt), parameters, request_id, priority=priority
            )
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    [choice] = output.outputs
                    yield Output(
                        token_ids=choice.token_ids,
                        cached_tokens=output.num_cached_tokens or 0,
                        finish_reason=choice.finish_reason or "",
                        logprobs=_positions(choice.logprobs),
                        prompt_logprobs=_positions(output.prompt_logprobs),
                    )
        except EngineDeadError as error:
            raise VllmDiedError(str(error)) from error
        except Exception as error:
            if self.is_dead:
                raise VllmDiedError(str(error)) from error
            raise request_error(error) from error

    def metrics(self) -> bytes:
        from prometheus_client import generate_latest
        from prometheus_client.registry import Collector
        from vllm.v1.metrics.prometheus import get_prometheus_registry

        registry = get_prometheus_registry()

        class OfVllm(Collector):
            """Without those of the process: the server has its own of that name."""

            def collect(self) -> Any:
                return (family for family in registry.collect() if family.name.startswith(VLLM_PREFIX))

        return generate_latest(OfVllm())

    async def clear_cache(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            is_clear = await self._llm.reset_prefix_cache(reset_running_requests=True)
        except EngineDeadError as error:
            raise VllmDiedError(str(error)) from error
        except Exception as error:
            if self.is_dead:
                raise VllmDiedError(str(error)) from error
            raise ClearDeclinedError(str(error)) from error
        if not is_clear:
            raise ClearDeclinedError("blocks are in use")

    def shutdown(self) -> None:
        """End vLLM's processes. Nothing else can be called afterwards."""
        self._llm.shutdown(timeout=1.0)
        del self._llm  # shuts down once more while its modules are there


def events_config(endpoint: str, replay_endpoint: str) -> Any:
    """Settings of vLLM by which its engine core sends its cache events to an `EventSocket`."""
    from vllm.config import KVEventsConfig

    return KVEventsConfig(
        enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=replay_endpoint
    )


def _scores_by_slices(config: Any) -> bool:
    """Whether a prompt's log probabilities take memory for some of its tokens at a time.

    VLLM's newer model runner does that, and where it is not used, on CPUs, our own worker.
    """
    return getattr(config, "use_v2_model_runner", True) or config.parallel_config.worker_cls == worker.NAME


def _statistics(statistics: Any, iteration: Any) -> StepStatistics:
    step = statistics.iteration_details
    return StepStatistics(
        running_sequences=statistics.num_running_reqs,
        used_ratio=statistics.kv_cache_usage,
        prefill_tokens=step.num_ctx_tokens if step else 0,
        decode_sequences=step.num_generation_requests if step else 0,
        step_seconds=step.elapsed_ms / 1000 if step else 0.0,
        preempted_sequences=iteration.num_preempted_reqs if iteration else 0,
    )


def _positions(logprobs: Iterable[Mapping[int, Any] | None] | None) -> list[Position]:
    """Scores of vLLM in our type; the first token of a prompt has none."""
    return [
        {token_id: Score(score.logprob, score.rank) for token_id, score in position.items()}
        for position in logprobs or ()
        if position is not None
    ]
