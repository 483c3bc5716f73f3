"""The worker's metrics: the engine's reports, and counts and latencies of requests."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from warmfleet_contracts import metrics as names
from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_worker.engine.messages import EngineReady, StepReport

_LABELS = ("model_name", "engine")


class _OwnNames(Collector):
    """Families of a registry whose names are not vLLM's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return (
            family for family in self._registry.collect() if not family.name.startswith(names.VLLM_PREFIX)
        )


class WorkerMetrics:
    """One registry per server, so that several can live in one process."""

    def __init__(
        self, model_name: str, *, on_first_token: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        """`on_first_token` is called with the time that each request's first token took."""
        self._on_first_token = on_first_token
        self.registry = CollectorRegistry()
        self._model = (model_name, "0")
        self._running = self._gauge(names.NUM_REQUESTS_RUNNING, "Sequences in the running batch.")
        self._waiting = self._gauge(
            names.NUM_REQUESTS_WAITING, "Sequences that wait to enter the running batch."
        )
        self._usage = self._gauge(
            names.KV_CACHE_USAGE, "Share of the KV blocks that live sequences hold, 0..1."
        )
        self._queries = self._counter(
            names.PREFIX_CACHE_QUERIES, "Prompt tokens that were looked up in the cache."
        )
        self._hits = self._counter(names.PREFIX_CACHE_HITS, "Prompt tokens that were found in the cache.")
        self._prompt = self._counter(
            names.PROMPT_TOKENS, "Prompt tokens of admitted sequences, cached ones included."
        )
        self._cached = self._counter(names.PROMPT_TOKENS_CACHED, "Prompt tokens that the cache served.")
        self._generated = self._counter(names.GENERATION_TOKENS, "Tokens generated.")
        self._preempted = self._counter(
            names.NUM_PREEMPTIONS, "Times that a running sequence gave its KV blocks up to others."
        )
        self._success = Counter(
            names.REQUEST_SUCCESS,
            "Sequences that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        latency = names.REQUEST_LATENCY_BUCKETS
        self._first_token = self._histogram(
            names.TIME_TO_FIRST_TOKEN,
            "Seconds from a sequence's arrival at the worker to its first token.",
            names.TIME_TO_FIRST_TOKEN_BUCKETS,
        )
        self._inter_token = self._histogram(
            names.INTER_TOKEN_LATENCY,
            "Seconds between two tokens of a sequence.",
            names.INTER_TOKEN_LATENCY_BUCKETS,
        )
        self._e2e = self._histogram(
            names.E2E_REQUEST_LATENCY,
            "Seconds from a sequence's arrival at the worker to its last token.",
            latency,
        )
        self._queue = self._histogram(
            names.REQUEST_QUEUE_TIME, "Seconds that a sequence waited in the worker to be admitted.", latency
        )
        counts = names.TOKEN_COUNT_BUCKETS
        self._request_prompt = self._histogram(
            names.REQUEST_PROMPT_TOKENS, "Prompt tokens of a sequence.", counts
        )
        self._request_generated = self._histogram(
            names.REQUEST_GENERATION_TOKENS, "Generated tokens of a sequence.", counts
        )
        self._iteration = self._histogram(
            names.ITERATION_TOKENS, "Tokens that an engine step computed.", names.ITERATION_TOKENS_BUCKETS
        )
        self._step = self._histogram(
            names.WORKER_STEP_SECONDS, "Seconds that an engine step took.", names.INTER_TOKEN_LATENCY_BUCKETS
        )
        self._roofline = Gauge(
            names.WORKER_ROOFLINE_RATIO,
            "Least time in which the machine could compute the recent steps, over the time they took, 0..1.",
            (*_LABELS, "phase"),
            registry=self.registry,
        )
        self._blocks = Gauge(
            names.WORKER_TOTAL_BLOCKS,
            "KV blocks of the worker, by state.",
            (*_LABELS, "state"),
            registry=self.registry,
        )
        self._evicted = self._counter(names.WORKER_EVICTED_BLOCKS, "Cached blocks that were evicted.")
        self._verified = self._counter(
            names.WORKER_VERIFIED_BLOCKS,
            "Cached blocks that were computed again and compared (engine.verifyHits).",
        )
        self._mismatched = self._counter(
            names.WORKER_MISMATCHED_BLOCKS,
            "Verified blocks that differed; anything but 0 is a defect of the memory, or a bug.",
        )
        self._bytes_per_token = self._gauge(
            names.WORKER_KV_BYTES_PER_TOKEN, "Bytes of KV cache that one token takes."
        )
        self._budget = self._gauge(
            names.WORKER_TOKEN_BUDGET, "Most tokens that the next engine step may compute."
        )
        self._queued = self._gauge(
            names.WORKER_QUEUED_UNCACHED_TOKENS,
            "Prompt tokens that wait to be computed, without cached ones.",
        )
        self._aborted = self._counter(
            names.WORKER_ABORTED_REQUESTS, "Requests that ended early because their client left."
        )
        self._ignored = self._counter(
            names.WORKER_IGNORED_FIELDS, "Unknown fields of requests, which were ignored."
        )
        self._paused = self._gauge(
            names.WORKER_PAUSED_SEQUENCES, "Sequences that are paused because their client reads too slowly."
        )
        self._failed_executions = self._counter(
            names.WORKER_FAILED_EXECUTIONS, "Times that an engine step, or a part of one, failed."
        )
        self._failed_sequences = self._counter(
            names.WORKER_FAILED_SEQUENCES, "Sequences that ended because they could not be computed."
        )
        self._prewarmed = self._counter(
            names.WORKER_PREWARMED_TOKENS, "Tokens of prefixes that were computed ahead of requests."
        )
        self._start = Gauge(
            names.WORKER_START_PHASE_SECONDS,
            "Seconds that a phase of this worker's start took.",
            (*_LABELS, "phase"),
            registry=self.registry,
        )
        self._stalls = self._counter(
            names.WORKER_ENGINE_STALLS, "Times that the step watchdog found a busy engine without progress."
        )
        self._subscribers = self._gauge(
            names.WORKER_EVENT_SUBSCRIBERS, "Event streams that routers have open."
        )
        self._dropped = self._counter(
            names.WORKER_DROPPED_SUBSCRIBERS,
            "Event streams that were closed because their router read too slowly.",
        )

    def on_ready(self, ready: EngineReady) -> None:
        config = {
            "block_size": str(ready.block_size_tokens),
            "num_gpu_blocks": str(ready.total_blocks),
            "cache_dtype": ready.dtype,
            "enable_prefix_caching": str(ready.prefix_caching),
        }
        info = Gauge(
            names.CACHE_CONFIG_INFO,
            "Configuration of the KV cache; always 1.",
            (*_LABELS, *config),
            registry=self.registry,
        )
        info.labels(*self._model, *config.values()).set(1)
        engine = {
            "kernels": ready.kernels,
            "dtype": ready.dtype,
            "device": ready.device,
            "exact": str(ready.exact).lower(),
        }
        Gauge(
            names.WORKER_ENGINE_INFO,
            "What computes, and whether equal bits are promised; always 1.",
            (*_LABELS, *engine),
            registry=self.registry,
        ).labels(*self._model, *engine.values()).set(1)
        self._bytes_per_token.set(ready.kv_bytes_per_token)

    def on_prewarmed(self, computed_tokens: int) -> None:
        """A router had prefixes computed ahead of requests."""
        self._prewarmed.inc(computed_tokens)

    def on_report(self, report: StepReport) -> None:
        self._load(report.load)
        self._budget.set(report.max_batched_tokens)
        if report.scheduled_tokens:
            self._iteration.observe(report.scheduled_tokens)
            self._step.observe(report.step_seconds)
        ratios = {"decode": report.decode_roofline_ratio, "prefill": report.prefill_roofline_ratio}
        for phase, ratio in ratios.items():
            if ratio:
                self._roofline.labels(*self._model, phase).set(ratio)
        self._preempted.inc(report.preempted_sequences)
        self._evicted.inc(report.evicted_blocks)
        self._verified.inc(report.verified_blocks)
        self._mismatched.inc(report.mismatched_blocks)
        self._paused.set(report.paused_sequences)
        self._failed_executions.inc(report.failed_executions)
        self._failed_sequences.inc(report.failed_sequences)

    def on_admission(self, *, prompt_tokens: int, cached_tokens: int, queue_seconds: float) -> None:
        """A sequence was matched against the cache."""
        self._prompt.inc(prompt_tokens)
        self._queries.inc(prompt_tokens)
        self._hits.inc(cached_tokens)
        self._cached.inc(cached_tokens)
        self._queue.observe(queue_seconds)
        self._request_prompt.observe(prompt_tokens)

    def on_first_tokens(self, tokens: int, seconds: float) -> None:
        self._generated.inc(tokens)
        self._first_token.observe(seconds)
        self._on_first_token(seconds)

    def on_tokens(self, tokens: int, seconds: float) -> None:
        """`tokens` came together, `seconds` after the ones before them."""
        self._generated.inc(tokens)
        self._inter_token.observe(seconds / tokens)

    def on_finish(self, *, reason: str, generated_tokens: int, seconds: float) -> None:
        self._success.labels(*self._model, reason).inc()
        self._request_generated.observe(generated_tokens)
        self._e2e.observe(seconds)

    def on_unfinished(self, reason: str) -> None:
        """A sequence ended by "error" or "abort": counted, but its latency is not that of an answer."""
        self._success.labels(*self._model, reason).inc()

    def on_abort(self) -> None:
        """The client of one request disconnected."""
        self._aborted.inc()

    def on_stall(self, *, stalled: bool) -> None:
        self._stalls.inc(stalled)

    def on_ignored_fields(self, fields: int) -> None:
        self._ignored.inc(fields)

    def on_start(self, phases: StartPhases) -> None:
        """Phases of this worker's start, those that are over."""
        for phase, seconds in phases.by_name().items():
            self._start.labels(*self._model, phase).set(seconds)

    def on_subscribers(self, subscribers: int) -> None:
        self._subscribers.set(subscribers)

    def on_dropped_subscriber(self) -> None:
        self._dropped.inc()

    def render(self) -> bytes:
        """Prometheus text exposition."""
        return generate_latest(self.registry)

    def render_own(self) -> bytes:
        """The same without vLLM's names: for an engine that has them itself."""
        return generate_latest(_OwnNames(self.registry))

    def _load(self, load: LoadReport) -> None:
        self._running.set(load.running_sequences)
        self._waiting.set(load.waiting_sequences)
        self._usage.set(load.pinned_blocks / load.total_blocks if load.total_blocks else 0.0)
        self._queued.set(load.queued_uncached_tokens)
        free = load.total_blocks - load.pinned_blocks - load.cached_blocks
        states = {"pinned": load.pinned_blocks, "cached": load.cached_blocks, "free": free}
        for state, blocks in states.items():
            self._blocks.labels(*self._model, state).set(blocks)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, _LABELS, registry=self.registry).labels(*self._model)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self.registry).labels(*self._model)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(name, text, _LABELS, buckets=tuple(buckets), registry=self.registry).labels(
            *self._model
        )
