"""docs/reference/metrics.md: its tables, made from the metrics that routers, workers and operators register.

`python -m warmfleet_testing.documents.metrics_reference` writes them between the page's two markers; the
prose outside is written by hand. A name, its type, its labels and its text come from the code; the question
that it answers, its unit and how it is put together over pods stand here. A test compares.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic.alias_generators import to_camel

from warmfleet_contracts import metrics as names
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_contracts.resources.conditions import RELEASE_CONFLICT, ConditionStatus, ConditionType
from warmfleet_operator.errors import ClusterError, NotLeadingError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import CHILDREN, EVENT, MODEL_DEPLOYMENT, POD, WATCHED
from warmfleet_router.economics.misses import MissCause
from warmfleet_router.metrics import MAX_TENANT_LABELS, OverloadReason, RouterMetrics
from warmfleet_router.prewarm.handover_plan import Skipped
from warmfleet_router.routing.decisions import Difference, Mode, Outcome
from warmfleet_router.workers.breakers import Cause
from warmfleet_router.workers.event_stream import StreamCounts
from warmfleet_testing.documents.generated_page import with_tables
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.native.levels import Level

PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"

WORKER_LABELS: Final = ("model_name", "engine")
"""Of every metric of a worker; the page names them once."""


@dataclass(frozen=True, slots=True)
class Use:
    """What the tables have beside what the code registers."""

    unit: str
    over_pods: str = "sum"
    """How the values of several pods are put together; of counters and histograms, their rates."""


QUESTIONS: Final[Mapping[str, Mapping[str, Use]]] = {
    "Is it serving?": {
        names.ROUTER_REQUESTS: Use("requests"),
        names.ROUTER_TENANT_REQUESTS: Use("requests"),
        names.ROUTER_REFUSED: Use("requests"),
        names.ROUTER_IN_FLIGHT: Use("requests"),
        names.ROUTER_ENDPOINTS: Use("workers", "max"),
        names.ROUTER_FAILED_ATTEMPTS: Use("dispatches"),
        names.ROUTER_REFUSED_RETRIES: Use("retries"),
        names.ROUTER_BROKEN_STREAMS: Use("answers"),
        names.ROUTER_EJECTIONS: Use("ejections"),
        names.ROUTER_EJECTED_ENDPOINTS: Use("workers", "max"),
        names.ROUTER_PANICS: Use("dispatches"),
        names.ROUTER_IGNORED_FIELDS: Use("fields"),
        names.REQUEST_SUCCESS: Use("sequences"),
        names.PROMPT_TOKENS: Use("tokens"),
        names.GENERATION_TOKENS: Use("tokens"),
        names.WORKER_ABORTED_REQUESTS: Use("requests"),
        names.WORKER_FAILED_EXECUTIONS: Use("steps"),
        names.WORKER_FAILED_SEQUENCES: Use("sequences"),
        names.WORKER_ENGINE_STALLS: Use("stalls"),
        names.WORKER_IGNORED_FIELDS: Use("fields"),
        names.WORKER_ENGINE_INFO: Use("always 1", "count"),
        names.OPERATOR_DEPLOYMENT_WANTED: Use("replicas", "max"),
        names.OPERATOR_DEPLOYMENT_READY: Use("replicas", "max"),
        names.OPERATOR_DEPLOYMENT_CONDITION: Use("1, or absent", "max"),
        names.OPERATOR_CONDITIONS: Use("ModelDeployments", "max"),
    },
    "Is the cache used?": {
        names.ROUTER_PROMPT_TOKENS: Use("tokens"),
        names.ROUTER_CACHED_TOKENS: Use("tokens"),
        names.ROUTER_PREDICTED_CACHED_TOKENS: Use("tokens"),
        names.ROUTER_MISSED_TOKENS: Use("tokens"),
        names.ROUTER_PREDICTIONS: Use("answers"),
        names.ROUTER_DECISIONS: Use("requests"),
        names.ROUTER_HASH_MISMATCHES: Use("prompts"),
        names.ROUTER_INDEX_BLOCKS: Use("blocks", "max"),
        names.ROUTER_PENDING_BLOCKS: Use("blocks"),
        names.ROUTER_TOKENIZERS: Use("tokenizers", "max"),
        names.ROUTER_STREAM_EVENTS: Use("events"),
        names.ROUTER_PREWARMS: Use("workers"),
        names.ROUTER_HANDOVER_PREFIXES: Use("prefixes"),
        names.ROUTER_HANDOVER_TOKENS: Use("tokens"),
        names.ROUTER_HANDOVER_SECONDS: Use("seconds"),
        names.PREFIX_CACHE_QUERIES: Use("tokens"),
        names.PREFIX_CACHE_HITS: Use("tokens"),
        names.PROMPT_TOKENS_CACHED: Use("tokens"),
        names.WORKER_PREWARMED_TOKENS: Use("tokens"),
        names.WORKER_EVENT_SUBSCRIBERS: Use("streams"),
        names.WORKER_DROPPED_SUBSCRIBERS: Use("streams"),
        names.WORKER_VERIFIED_BLOCKS: Use("blocks"),
        names.WORKER_MISMATCHED_BLOCKS: Use("blocks"),
    },
    "Is it slow?": {
        names.ROUTER_FIRST_BYTE_SECONDS: Use("seconds"),
        names.ROUTER_DECISION_SECONDS: Use("seconds"),
        names.ROUTER_HELD_SECONDS: Use("seconds"),
        names.ROUTER_WAKING_SECONDS: Use("seconds"),
        names.TIME_TO_FIRST_TOKEN: Use("seconds"),
        names.INTER_TOKEN_LATENCY: Use("seconds"),
        names.E2E_REQUEST_LATENCY: Use("seconds"),
        names.REQUEST_QUEUE_TIME: Use("seconds"),
        names.WORKER_STEP_SECONDS: Use("seconds"),
        names.ITERATION_TOKENS: Use("tokens"),
        names.WORKER_TOKEN_BUDGET: Use("tokens", "max"),
        names.WORKER_ROOFLINE_RATIO: Use("ratio", "min"),
        names.REQUEST_PROMPT_TOKENS: Use("tokens"),
        names.REQUEST_GENERATION_TOKENS: Use("tokens"),
    },
    "Is it full?": {
        names.ROUTER_HELD_REQUESTS: Use("requests"),
        names.ROUTER_HELD_TOKENS: Use("tokens"),
        names.ROUTER_WAKING_REQUESTS: Use("requests"),
        names.ROUTER_WAKING_TOKENS: Use("tokens"),
        names.ROUTER_OVERLOADED: Use("requests"),
        names.NUM_REQUESTS_RUNNING: Use("sequences"),
        names.NUM_REQUESTS_WAITING: Use("sequences"),
        names.WORKER_QUEUED_UNCACHED_TOKENS: Use("tokens"),
        names.KV_CACHE_USAGE: Use("ratio", "min, avg or max"),
        names.WORKER_TOTAL_BLOCKS: Use("blocks"),
        names.WORKER_EVICTED_BLOCKS: Use("blocks"),
        names.NUM_PREEMPTIONS: Use("preemptions"),
        names.WORKER_PAUSED_SEQUENCES: Use("sequences"),
        names.CACHE_CONFIG_INFO: Use("always 1", "count"),
        names.WORKER_KV_BYTES_PER_TOKEN: Use("bytes", "max"),
    },
    "Does it scale?": {
        names.OPERATOR_SCALING_WANTED: Use("replicas", "max"),
        names.OPERATOR_SCALING_RECOMMENDED: Use("replicas", "max"),
        names.OPERATOR_SCALING_BLIND: Use("0 or 1", "max"),
        names.OPERATOR_SCALING_CAPACITY_PENDING: Use("replicas", "max"),
        names.OPERATOR_SCALING_TICK_SECONDS: Use("seconds"),
        names.OPERATOR_DEPLOYMENT_START_SECONDS: Use("seconds", "max"),
        names.WORKER_START_PHASE_SECONDS: Use("seconds", "max"),
        names.OPERATOR_SHRINK_VICTIMS: Use("pods"),
        names.OPERATOR_HANDOVER_SECONDS: Use("seconds"),
    },
    "Is something wrong with the control plane?": {
        names.OPERATOR_LEADER: Use("0 or 1"),
        names.OPERATOR_RECONCILIATIONS: Use("reconciliations"),
        names.OPERATOR_ERRORS: Use("errors"),
        names.OPERATOR_RECONCILE_SECONDS: Use("seconds"),
        names.OPERATOR_WRITES: Use("writes"),
        names.OPERATOR_QUEUE_DEPTH: Use("ModelDeployments", "max"),
        names.OPERATOR_WATCH_BEHIND_SECONDS: Use("seconds", "max"),
        names.OPERATOR_OBJECTS: Use("objects", "max"),
        names.ROUTER_DISCOVERY_AGE_SECONDS: Use("seconds", "max"),
        names.ROUTER_DISCOVERY_ERRORS: Use("errors"),
        names.ROUTER_KEYS: Use("keys", "max"),
        names.ROUTER_KEY_FILE_LOADS: Use("files"),
        names.ROUTER_KEY_FILE_REFUSED: Use("1 or 0", "max"),
    },
}
"""Every metric, under the question that it answers first."""

Values: TypeAlias = tuple[str, ...] | str
"""All values of a label, or what its values are where there is no list."""

_OUTCOMES: Final = tuple(name for name in get_args(Outcome) if name != "in flight")
_PHASES: Final = StartPhases.__struct_fields__
_CONDITIONS: Final = {"condition": (*ConditionType, RELEASE_CONFLICT), "status": tuple(ConditionStatus)}
_ERRORS: Final = sorted(
    kind.__name__.removesuffix("Error").lower()
    for kind in ClusterError.__subclasses__()
    if kind is not NotLeadingError
)
_STATUS_CODE: Final = "HTTP status"
_TENANT: Final = f"name in the key file, anonymous without one, other beyond the first {MAX_TENANT_LABELS}"

VALUES: Final[Mapping[str, Mapping[str, Values]]] = {
    names.ROUTER_REQUESTS: {"outcome": _OUTCOMES},
    names.ROUTER_TENANT_REQUESTS: {"tenant": _TENANT, "outcome": _OUTCOMES},
    names.ROUTER_REFUSED: {"status": _STATUS_CODE},
    names.ROUTER_ENDPOINTS: {"state": ("ready", "precise", "unready")},
    names.ROUTER_FAILED_ATTEMPTS: {"reason": f"connection, or {_STATUS_CODE}"},
    names.ROUTER_EJECTIONS: {"cause": tuple(Cause)},
    names.ROUTER_MISSED_TOKENS: {"cause": tuple(MissCause)},
    names.ROUTER_PREDICTIONS: {"difference": get_args(Difference)},
    names.ROUTER_DECISIONS: {"mode": get_args(Mode)},
    names.ROUTER_STREAM_EVENTS: {
        "endpoint": "name of the pod",
        "event": tuple(field.name for field in fields(StreamCounts)),
    },
    names.ROUTER_PREWARMS: {"outcome": ("computed", "empty", "failed")},
    names.ROUTER_HANDOVER_PREFIXES: {"outcome": ("moved", *Skipped)},
    names.ROUTER_OVERLOADED: {"reason": get_args(OverloadReason), "tenant": _TENANT},
    names.ROUTER_KEY_FILE_LOADS: {"result": ("loaded", "refused")},
    names.REQUEST_SUCCESS: {"finished_reason": ("stop", "length", "error", "abort")},
    names.WORKER_ROOFLINE_RATIO: {"phase": ("decode", "prefill")},
    names.WORKER_TOTAL_BLOCKS: {"state": ("pinned", "cached", "free")},
    names.WORKER_START_PHASE_SECONDS: {"phase": _PHASES},
    names.WORKER_ENGINE_INFO: {
        "kernels": ("torch", "triton", *(level.title for level in Level), "empty with vLLM"),
        "dtype": "such as bfloat16",
        "device": "such as cpu",
        "exact": ("true", "false"),
    },
    names.CACHE_CONFIG_INFO: {
        "block_size": "tokens",
        "num_gpu_blocks": "blocks, also on a CPU",
        "cache_dtype": "such as bfloat16",
        "enable_prefix_caching": ("True", "False"),
    },
    names.OPERATOR_DEPLOYMENT_CONDITION: _CONDITIONS,
    names.OPERATOR_CONDITIONS: _CONDITIONS,
    names.OPERATOR_DEPLOYMENT_START_SECONDS: {
        "phase": ("schedule", "fetch", *(to_camel(phase) for phase in _PHASES))
    },
    names.OPERATOR_SCALING_RECOMMENDED: {
        "signal": (
            *("tokens", "sequences", "compute", "firstToken", "betweenTokens"),
            *("earlierLatency", "earlierGrowth", "capacityMisses", "requests"),
        )
    },
    names.OPERATOR_SHRINK_VICTIMS: {"choice": ("ours", "other")},
    names.OPERATOR_RECONCILIATIONS: {"result": ("done", "failed", "refused", "not_leading")},
    names.OPERATOR_ERRORS: {"error": (*_ERRORS, "other")},
    names.OPERATOR_WRITES: {
        "kind": tuple(kind.name for kind in (MODEL_DEPLOYMENT, *CHILDREN, POD, EVENT)),
        "verb": ("apply", "delete", "scale", "label", "mark", "status", "event"),
    },
    names.OPERATOR_WATCH_BEHIND_SECONDS: {"kind": tuple(kind.plural for kind in WATCHED)},
    names.OPERATOR_OBJECTS: {"kind": tuple(kind.name for kind in WATCHED)},
}
"""By metric and label. The labels that are missing name a model, a ModelDeployment or an engine."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric as a component registers it."""

    component: str
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def scraped_name(self) -> str:
        """As the exposition has it: a counter's ends in `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind != "histogram":
            return (self.scraped_name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


def exported() -> dict[str, Exported]:
    """Every metric by the name of `warmfleet_contracts.metrics`."""
    worker = WorkerMetrics("model")
    worker.on_ready(READY)
    registries = {
        "router": RouterMetrics().registry,
        "worker": worker.registry,
        "operator": OperatorMetrics()._registry,
    }
    found = [
        Exported(component, metric._name, str(metric._type), tuple(metric._labelnames), metric._documentation)
        for component, registry in registries.items()
        for metric in _registered(registry)
    ]
    return {metric.name: metric for metric in found}


def _registered(registry: CollectorRegistry) -> Iterator[MetricWrapperBase]:
    yield from (one for one in registry._collector_to_names if isinstance(one, MetricWrapperBase))


def metric_tables(metrics: Mapping[str, Exported]) -> str:
    """A table for each question."""
    parts = []
    for question, uses in QUESTIONS.items():
        parts += [
            f"### {question}",
            "| metric | exported by | type | labels | unit | over pods | what it counts |",
            "|---|---|---|---|---|---|---|",
            *(_row(metrics[name], use) for name, use in uses.items()),
            "",
        ]
    return "\n".join(parts)


def _row(metric: Exported, use: Use) -> str:
    own = [label for label in metric.labels if metric.component != "worker" or label not in WORKER_LABELS]
    cells = (
        f"`{metric.scraped_name}`",
        metric.component,
        metric.kind,
        "; ".join(_labels(own, VALUES.get(metric.name, {}))),
        use.unit,
        use.over_pods,
        metric.text,
    )
    return f"| {' | '.join(cells)} |"


def _labels(labels: Iterable[str], values: Mapping[str, Values]) -> Iterator[str]:
    for label in labels:
        known = values.get(label, "")
        text = known if isinstance(known, str) else ", ".join(known)
        yield f"`{label}`: {text}" if text else f"`{label}`"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_tables(PAGE.read_text(), metric_tables(exported())))
    sys.stdout.write(f"{PAGE.name} is up to date\n")


if __name__ == "__main__":
    main()
