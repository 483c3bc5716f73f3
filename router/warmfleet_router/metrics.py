"""The router's metrics: decisions, their outcomes, and the state of the fleet."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from warmfleet_contracts import metrics as names
from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_contracts.cache.handover import HandoverAnswer
from warmfleet_router.discovery.base import DiscoveryState
from warmfleet_router.economics.misses import MissCause
from warmfleet_router.economics.model_counts import ModelCounts
from warmfleet_router.routing.decisions import WorkerAnswer
from warmfleet_router.workers.fleet import WorkerStatus

MAX_TENANT_LABELS: Final = 256
"""Tenants that have a series of their own."""
_CONNECTION: Final = "connection"
"""Reason of a failed attempt without a status."""


OverloadReason: TypeAlias = Literal[
    "in_flight",
    "queue_full",
    "wait",
    "held_too_long",
    "tenant_requests",
    "tenant_tokens",
    "tenant_share",
    "tenant_queue",
    "waking_full",
    "tenant_waking",
    "waking_too_long",
]
"""The bound by which a request was refused; the last three are those of requests whose model sleeps."""

M = TypeVar("M", bound=MetricWrapperBase)


class AnsweredTokens(NamedTuple):
    """Tokens of prompts that workers answered, and how many of them they found cached."""

    prompt: int = 0
    cached: int = 0


class ComputedPrompt(NamedTuple):
    """What a worker computes of a request's prompts, as it stated on admission; nothing where it did not."""

    tokens: AnsweredTokens = AnsweredTokens()
    misses: MissTokens = MissTokens()


class RouterMetrics:
    """One registry per router, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            names.ROUTER_REQUESTS,
            "Requests that ended, by outcome; those refused before their prompt was encoded are not counted.",
            ("model_name", "outcome"),
        )
        self._refused = self._counter(
            names.ROUTER_REFUSED,
            "Requests that the router itself answered with an error, on any path, by HTTP status.",
            ("status",),
        )
        self._tenant_requests = self._counter(
            names.ROUTER_TENANT_REQUESTS, "Requests that ended, by tenant and outcome.", ("tenant", "outcome")
        )
        self._tenants: set[str] = set()
        self._keys = self._gauge(names.ROUTER_KEYS, "API keys in force; 0 without a key file.", ())
        self._key_file_loads = self._counter(
            names.ROUTER_KEY_FILE_LOADS,
            "Key files that were read after a change; of a refused one the last valid keys stay in force.",
            ("result",),
        )
        for result in ("loaded", "refused"):
            self._key_file_loads.labels(result)
        self._key_file_refused = self._gauge(
            names.ROUTER_KEY_FILE_REFUSED,
            "1 while the key file as it is now is refused, so that the last valid keys are in force; else 0.",
            (),
        )
        self._decisions = self._counter(
            names.ROUTER_DECISIONS,
            "First choices of a worker, by whether the prefix index and the tokenizer were known.",
            ("model_name", "mode"),
        )
        self._failed_attempts = self._counter(
            names.ROUTER_FAILED_ATTEMPTS,
            "Dispatches to a worker that brought no answer; the request may have been answered by another.",
            ("model_name", "reason"),
        )
        self._broken_streams = self._counter(
            names.ROUTER_BROKEN_STREAMS,
            "Streamed answers that broke off because their worker ended or fell silent.",
            ("model_name",),
        )
        self._ejections = self._counter(
            names.ROUTER_EJECTIONS,
            "Times that a worker was ejected: it gets no requests for a while.",
            ("cause",),
        )
        self._panics = self._counter(
            names.ROUTER_PANICS,
            "Dispatches for which ejections were ignored: more than half of the workers were ejected.",
            (),
        )
        self._prewarms = self._counter(
            names.ROUTER_PREWARMS,
            "New workers that were sent frequent prefixes to compute before requests, or none (empty).",
            ("outcome",),
        )
        self._handover_prefixes = self._counter(
            names.ROUTER_HANDOVER_PREFIXES,
            "Frequent prefixes of workers that were about to go: moved to others, or why not.",
            ("outcome",),
        )
        self._handover_tokens = self._counter(
            names.ROUTER_HANDOVER_TOKENS, "Tokens of such prefixes that the remaining workers computed.", ()
        )
        self._handover_seconds = self._counter(
            names.ROUTER_HANDOVER_SECONDS, "Seconds that the router spent on moving such prefixes.", ()
        )
        self._refused_retries = self._counter(
            names.ROUTER_REFUSED_RETRIES, "Retries that were not made because the retry budget was spent.", ()
        )
        self._ejected = self._gauge(
            names.ROUTER_EJECTED_ENDPOINTS,
            "Workers that are ejected now; one that is probed again does not count.",
            (),
        )
        self._prompt_tokens = self._counter(
            names.ROUTER_PROMPT_TOKENS,
            "Prompt tokens of answered requests, as workers reported them.",
            ("model_name",),
        )
        self._predicted = self._counter(
            names.ROUTER_PREDICTED_CACHED_TOKENS,
            "Prompt tokens that the router predicted to be cached at the worker that it chose.",
            ("model_name",),
        )
        self._actual = self._counter(
            names.ROUTER_CACHED_TOKENS,
            "Prompt tokens of answered requests that workers found cached.",
            ("model_name",),
        )
        self._missed = self._counter(
            names.ROUTER_MISSED_TOKENS,
            "Prompt tokens that workers computed, by the reason why they were not cached.",
            ("model_name", "cause"),
        )
        self._differences = self._counter(
            names.ROUTER_PREDICTIONS,
            "Predictions of cached tokens, by how the worker's own count differed.",
            ("model_name", "difference"),
        )
        self._parity = self._counter(
            names.ROUTER_HASH_MISMATCHES,
            "Prompts that router and worker hashed differently; anything but 0 is a bug.",
            (),
        )
        self._ignored = self._counter(
            names.ROUTER_IGNORED_FIELDS, "Unknown fields of requests, which were ignored.", ()
        )
        self._decision_seconds = Histogram(
            names.ROUTER_DECISION_SECONDS,
            "Seconds from the complete request body to the first choice: a worker, or to wait for one.",
            registry=self.registry,
            buckets=names.ROUTER_DECISION_BUCKETS,
        )
        self._first_byte_seconds = Histogram(
            names.ROUTER_FIRST_BYTE_SECONDS,
            "Seconds from the complete request body to the first token, the wait for a worker included.",
            ("model_name",),
            registry=self.registry,
            buckets=names.TIME_TO_FIRST_TOKEN_BUCKETS,
        )
        self._held_seconds = Histogram(
            names.ROUTER_HELD_SECONDS,
            "Seconds that requests which had to wait for a worker with capacity waited in the router.",
            ("model_name",),
            registry=self.registry,
            buckets=names.ROUTER_HELD_BUCKETS,
        )
        self._waking_seconds = Histogram(
            names.ROUTER_WAKING_SECONDS,
            "Seconds that requests were held until their sleeping model was awake.",
            ("model_name",),
            registry=self.registry,
            buckets=names.ROUTER_WAKING_BUCKETS,
        )
        self._overloaded = self._counter(
            names.ROUTER_OVERLOADED,
            "Requests refused because a bound was reached, by that bound.",
            ("reason", "tenant"),
        )
        self._held_requests = self._gauge(
            names.ROUTER_HELD_REQUESTS,
            "Requests that wait in the router for a worker with capacity.",
            ("model_name",),
        )
        self._held_tokens = self._gauge(
            names.ROUTER_HELD_TOKENS,
            "Prompt tokens of the requests that wait for a worker with capacity.",
            ("model_name",),
        )
        self._waking_requests = self._gauge(
            names.ROUTER_WAKING_REQUESTS, "Requests that wait for their sleeping model.", ("model_name",)
        )
        self._waking_tokens = self._gauge(
            names.ROUTER_WAKING_TOKENS,
            "Prompt tokens of the requests that wait for their sleeping model, estimated as bytes / 4.",
            ("model_name",),
        )
        self._in_flight = self._gauge(
            names.ROUTER_IN_FLIGHT, "Requests that have not ended, waiting ones included.", ()
        )
        self._endpoints = self._gauge(
            names.ROUTER_ENDPOINTS,
            "Workers in the router's list, by state; precise ones are a part of the ready ones.",
            ("state",),
        )
        self._discovery_age = self._gauge(
            names.ROUTER_DISCOVERY_AGE_SECONDS,
            "Seconds since the list of workers was last known to be current.",
            (),
        )
        self._discovery_errors = self._counter(
            names.ROUTER_DISCOVERY_ERRORS, "Failed attempts to bring the list of workers up to date.", ()
        )
        self._seen_discovery_errors = 0
        self._index_blocks = self._gauge(
            names.ROUTER_INDEX_BLOCKS,
            "Blocks in the prefix index; one that two workers hold counts twice.",
            (),
        )
        self._pending_blocks = self._gauge(
            names.ROUTER_PENDING_BLOCKS, "Blocks that workers compute for requests that were dispatched.", ()
        )
        self._tokenizers = self._gauge(names.ROUTER_TOKENIZERS, "Tokenizers in the router's memory.", ())
        self._stream_events = self._gauge(
            names.ROUTER_STREAM_EVENTS,
            "What happened on the event stream of each worker since the router follows it.",
            ("endpoint", "event"),
        )

        self._series: dict[str, set[tuple[MetricWrapperBase, tuple[str, ...]]]] = {}
        """Those with a model's name as their first label."""
        self.models = ModelCounts()

    def on_ignored_fields(self, count: int) -> None:
        if count:
            self._ignored.inc(count)

    def on_decision(self, model: str, mode: str, seconds: float) -> None:
        self._of(self._decisions, model, mode).inc()
        self._decision_seconds.observe(seconds)

    def on_failed_attempt(self, model: str, status: int | None) -> None:
        reason = _CONNECTION if status is None else str(status)
        self._of(self._failed_attempts, model, reason).inc()

    def on_broken_stream(self, model: str) -> None:
        self._of(self._broken_streams, model).inc()

    def on_ejected(self, cause: str) -> None:
        self._ejections.labels(cause).inc()

    def on_panic(self) -> None:
        self._panics.inc()

    def on_prewarm(self, outcome: str) -> None:
        """`computed`: a newcomer has its prefixes; `empty`: it was sent none; `failed`: it gave no answer."""
        self._prewarms.labels(outcome).inc()

    def on_handover(self, answer: HandoverAnswer) -> None:
        """What came of the hot prefixes of workers that are about to go."""
        for outcome, count in {"moved": answer.moved_prefixes, **answer.skipped}.items():
            self._handover_prefixes.labels(outcome).inc(count)
        self._handover_tokens.inc(answer.computed_tokens)
        self._handover_seconds.inc(answer.seconds)

    def on_refused_retry(self) -> None:
        self._refused_retries.inc()

    def on_first_byte(self, model: str, seconds: float) -> None:
        self._of(self._first_byte_seconds, model).observe(seconds)
        self.models.of(model).first_token.add(seconds * 1e3)

    def on_tokens(self, model: str, tokens: int, gap_ms: float) -> None:
        """`tokens` of an answer came, each so long after the one before."""
        self.models.of(model).inter_token.add(gap_ms, tokens)

    def on_mean_gap(self, model: str, gap_ms: float) -> None:
        """An answer ended; its tokens came so long after each other on average."""
        self.models.of(model).mean_inter_token.add(gap_ms)

    def on_held(self, model: str, seconds: float) -> None:
        self._of(self._held_seconds, model).observe(seconds)

    def on_awake(self, model: str, seconds: float) -> None:
        self._of(self._waking_seconds, model).observe(seconds)

    def on_overload(self, reason: OverloadReason, tenant: str) -> None:
        self._overloaded.labels(reason, self._tenant_label(tenant)).inc()

    def on_answer(
        self,
        model: str,
        predicted_cached_tokens: int,
        tokens: AnsweredTokens,
        misses: MissTokens,
        answer: WorkerAnswer,
    ) -> None:
        """A worker reported what it found cached; `tokens` are those of all prompts, as far as known."""
        self._of(self._prompt_tokens, model).inc(tokens.prompt)
        self._of(self._predicted, model).inc(predicted_cached_tokens)
        self._of(self._actual, model).inc(tokens.cached)
        for cause in MissCause:
            self._of(self._missed, model, cause.value).inc(getattr(misses, cause))
        self._of(self._differences, model, answer.difference).inc()
        if answer.last_block_matches is False:
            self._parity.inc()

    def on_computed(self, model: str, prompt: ComputedPrompt) -> None:
        """A worker computed what it had not found: its first token is here.

        The number of replicas is decided by these. A request that was given up before would have been spared
        nothing by a larger fleet.
        """
        self.models.of(model).answered(prompt.tokens.prompt, prompt.tokens.cached, prompt.misses)

    def on_start(self) -> None:
        self._in_flight.inc()

    def on_end(self, model: str, outcome: str) -> None:
        self._in_flight.dec()
        self._of(self._requests, model, outcome).inc()

    def on_tenant_end(self, tenant: str, outcome: str) -> None:
        """`tenant` is a name out of the key file, never what a client sent."""
        self._tenant_requests.labels(self._tenant_label(tenant), outcome).inc()

    def on_keys_loaded(self, keys: int) -> None:
        self._key_file_loads.labels("loaded").inc()
        self._key_file_refused.set(0)
        self._keys.set(keys)

    def on_key_file_refused(self) -> None:
        self._key_file_loads.labels("refused").inc()
        self._key_file_refused.set(1)

    def on_refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def _tenant_label(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANT_LABELS:
                return "other"
            self._tenants.add(tenant)
        return tenant

    def render(
        self,
        workers: Iterable[WorkerStatus],
        *,
        index_blocks: int,
        pending_blocks: int,
        tokenizers: int,
        ejected: int,
        held: Mapping[str, tuple[int, int]],
        waking: Mapping[str, tuple[int, int]],
        models: Collection[str],
        discovery: DiscoveryState,
    ) -> bytes:
        """The exposition, with the gauges of the moment. `held`: requests and tokens that wait, by model.

        `waking`: the same of those that wait for their model to wake.
        Series of models that are in none of `models`, `held` and `waking` are dropped once they have been
        exposed.
        Failures of a model count from 0: of a series that begins at 1, Prometheus sees no increase.
        """
        for model in models:
            self._of(self._broken_streams, model)
            self._of(self._failed_attempts, model, _CONNECTION)
        for model, (requests, tokens) in held.items():
            self._of(self._held_requests, model).set(requests)
            self._of(self._held_tokens, model).set(tokens)
        for model, (requests, tokens) in waking.items():
            self._of(self._waking_requests, model).set(requests)
            self._of(self._waking_tokens, model).set(tokens)
        states = dict.fromkeys(("ready", "precise", "unready"), 0)
        self._stream_events.clear()
        for worker in workers:
            states["ready" if worker.ready else "unready"] += 1
            states["precise"] += worker.ready and worker.precise
            counts = worker.counts
            for event in (
                "opened",
                "failed",
                "hellos_refused",
                "snapshots",
                "resyncs",
                "load_only",
                "silences",
            ):
                self._stream_events.labels(worker.endpoint.name, event).set(getattr(counts, event))
        for state, count in states.items():
            self._endpoints.labels(state).set(count)
        self._index_blocks.set(index_blocks)
        self._pending_blocks.set(pending_blocks)
        self._tokenizers.set(tokenizers)
        self._ejected.set(ejected)
        self._discovery_age.set(discovery.age_seconds)
        self._discovery_errors.inc(discovery.errors - self._seen_discovery_errors)
        self._seen_discovery_errors = discovery.errors
        exposition = generate_latest(self.registry)
        for model in self._series.keys() - held.keys() - waking.keys() - set(models):
            self._forget(model)
        return exposition

    def _of(self, metric: M, model: str, *labels: str) -> M:
        """The series of a model, which goes when the model does."""
        self._series.setdefault(model, set()).add((metric, labels))
        return metric.labels(model, *labels)

    def _forget(self, model: str) -> None:
        for metric, labels in self._series.pop(model):
            metric.remove(model, *labels)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)
