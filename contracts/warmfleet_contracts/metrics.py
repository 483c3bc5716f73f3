"""Every metric name, once. vLLM's names where vLLM has the metric, so that its dashboards work unchanged.

Counters are named without the `_total` that the exposition adds. New names carry no colon and use base
units; a rename keeps the old name beside the new one for two minor versions.
"""

# ruff: noqa: S105 - "token" in these names is a unit of text, not a secret

from typing import Final

VLLM_PREFIX: Final = "vllm:"
# vLLM's names; labels: model_name, engine.
NUM_REQUESTS_RUNNING: Final = "vllm:num_requests_running"
NUM_REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"
"""0..1, in spite of its name: blocks pinned by live sequences, of all blocks."""
CACHE_CONFIG_INFO: Final = "vllm:cache_config_info"
PREFIX_CACHE_QUERIES: Final = "vllm:prefix_cache_queries"
PREFIX_CACHE_HITS: Final = "vllm:prefix_cache_hits"
PROMPT_TOKENS: Final = "vllm:prompt_tokens"
PROMPT_TOKENS_CACHED: Final = "vllm:prompt_tokens_cached"
GENERATION_TOKENS: Final = "vllm:generation_tokens"
NUM_PREEMPTIONS: Final = "vllm:num_preemptions"
REQUEST_SUCCESS: Final = "vllm:request_success"
TIME_TO_FIRST_TOKEN: Final = "vllm:time_to_first_token_seconds"
INTER_TOKEN_LATENCY: Final = "vllm:inter_token_latency_seconds"
E2E_REQUEST_LATENCY: Final = "vllm:e2e_request_latency_seconds"
REQUEST_QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
REQUEST_PROMPT_TOKENS: Final = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS: Final = "vllm:request_generation_tokens"
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"

# The worker's own.
WORKER_ENGINE_INFO: Final = "warmfleet_worker_engine_info"
"""Labels `kernels` (torch, triton on a GPU, or the native step's level), `dtype`, `device`, and `exact`:
whether equal requests get equal bits. Always 1."""
WORKER_TOTAL_BLOCKS: Final = "warmfleet_worker_kv_blocks"
"""Label `state`: pinned (held by live sequences), cached (evictable), free."""
WORKER_KV_BYTES_PER_TOKEN: Final = "warmfleet_worker_kv_bytes_per_token"
WORKER_EVICTED_BLOCKS: Final = "warmfleet_worker_evicted_blocks"
WORKER_VERIFIED_BLOCKS: Final = "warmfleet_worker_verified_blocks"
"""Cached blocks that `--verify-hits` had computed again."""
WORKER_MISMATCHED_BLOCKS: Final = "warmfleet_worker_mismatched_blocks"
"""Of them, those whose bytes differed: anything but zero is a defect of the memory, or a bug."""
WORKER_TOKEN_BUDGET: Final = "warmfleet_worker_step_token_budget"
"""Most tokens in the next step, configured or chosen by the engine."""
WORKER_STEP_SECONDS: Final = "warmfleet_worker_step_seconds"
WORKER_ROOFLINE_RATIO: Final = "warmfleet_worker_roofline_ratio"
"""Label `phase`: decode, prefill. The least time that memory and processors of the machine allow for the
recent steps, over the time they took, 0..1; absent until the limits of the machine were measured."""
WORKER_QUEUED_UNCACHED_TOKENS: Final = "warmfleet_worker_queued_uncached_tokens"
WORKER_ABORTED_REQUESTS: Final = "warmfleet_worker_aborted_requests"
WORKER_IGNORED_FIELDS: Final = "warmfleet_worker_ignored_request_fields"
WORKER_PAUSED_SEQUENCES: Final = "warmfleet_worker_paused_sequences"
"""Paused now, because their clients read too slowly."""
WORKER_FAILED_EXECUTIONS: Final = "warmfleet_worker_failed_step_executions"
"""Times that an engine step, or a part of one that was computed again, raised."""
WORKER_FAILED_SEQUENCES: Final = "warmfleet_worker_failed_sequences"
"""Sequences that ended because they could not be computed."""
WORKER_START_PHASE_SECONDS: Final = "warmfleet_worker_start_phase_seconds"
"""Label `phase`: process, imports, load, prewarm, first_token; of the start of this process."""
WORKER_PREWARMED_TOKENS: Final = "warmfleet_worker_prewarmed_tokens"
WORKER_ENGINE_STALLS: Final = "warmfleet_worker_engine_stalls"
"""Times that the step watchdog found a busy engine without progress."""
WORKER_EVENT_SUBSCRIBERS: Final = "warmfleet_worker_event_subscribers"
WORKER_DROPPED_SUBSCRIBERS: Final = "warmfleet_worker_dropped_event_subscribers"
"""Event streams that were closed because their router read too slowly."""

# vLLM's buckets; inter-token latency has finer ones below its 10 ms.
TIME_TO_FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_LATENCY_BUCKETS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_COUNT_BUCKETS: Final = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    *(1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0),
)
ITERATION_TOKENS_BUCKETS: Final = (
    *(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
)

# The router's own.
ROUTER_REQUESTS: Final = "warmfleet_router_requests"
"""Labels `model_name`, `outcome`: completed, client left, refused, failed, broken."""
ROUTER_REFUSED: Final = "warmfleet_router_refused_requests"
ROUTER_TENANT_REQUESTS: Final = "warmfleet_router_tenant_requests"
"""Labels `tenant`, `outcome`. Tenants are those of the key file; beyond the first 256, `other`."""
ROUTER_KEYS: Final = "warmfleet_router_keys"
ROUTER_KEY_FILE_LOADS: Final = "warmfleet_router_key_file_loads"
"""Label `result`: loaded, or refused, which leaves the last valid keys in force."""
ROUTER_KEY_FILE_REFUSED: Final = "warmfleet_router_key_file_refused"
ROUTER_DECISIONS: Final = "warmfleet_router_decisions"
"""Label `mode`: precise, or load-only where index or tokenizer were not known."""
ROUTER_DECISION_SECONDS: Final = "warmfleet_router_decision_seconds"
ROUTER_FAILED_ATTEMPTS: Final = "warmfleet_router_failed_attempts"
ROUTER_BROKEN_STREAMS: Final = "warmfleet_router_broken_streams"
ROUTER_EJECTIONS: Final = "warmfleet_router_ejections"
"""Label `cause`: failures, silent, slow, impostor."""
ROUTER_EJECTED_ENDPOINTS: Final = "warmfleet_router_ejected_endpoints"
ROUTER_PANICS: Final = "warmfleet_router_ejection_panics"
"""Choices for which ejections were ignored, because more than half of a model's workers were ejected."""
ROUTER_PREWARMS: Final = "warmfleet_router_prewarms"
ROUTER_HANDOVER_PREFIXES: Final = "warmfleet_router_handover_prefixes"
"""Label `outcome`: moved, or why not: held, rare, no_key, no_room, refused, late, failed."""
ROUTER_HANDOVER_TOKENS: Final = "warmfleet_router_handover_tokens"
ROUTER_HANDOVER_SECONDS: Final = "warmfleet_router_handover_seconds"
ROUTER_REFUSED_RETRIES: Final = "warmfleet_router_refused_retries"
ROUTER_PROMPT_TOKENS: Final = "warmfleet_router_prompt_tokens"
ROUTER_PREDICTED_CACHED_TOKENS: Final = "warmfleet_router_predicted_cached_tokens"
ROUTER_CACHED_TOKENS: Final = "warmfleet_router_cached_tokens"
ROUTER_MISSED_TOKENS: Final = "warmfleet_router_missed_tokens"
"""Prompt tokens that workers computed. Labels `model_name` and `cause`: compulsory, placement, capacity,
lost, rollout."""
ROUTER_PREDICTIONS: Final = "warmfleet_router_predictions"
"""Label `difference`: none, evicted, not_yet_computed, preempted, stored_since, unknown."""
ROUTER_HASH_MISMATCHES: Final = "warmfleet_router_hash_mismatches"
"""Prompts that router and worker hashed differently. Anything but zero is a bug."""
ROUTER_IGNORED_FIELDS: Final = "warmfleet_router_ignored_request_fields"
ROUTER_FIRST_BYTE_SECONDS: Final = "warmfleet_router_first_byte_seconds"
ROUTER_IN_FLIGHT: Final = "warmfleet_router_requests_in_flight"
ROUTER_ENDPOINTS: Final = "warmfleet_router_endpoints"
"""Label `state`: ready, unready, and precise, which is a part of ready."""
ROUTER_DISCOVERY_AGE_SECONDS: Final = "warmfleet_router_discovery_age_seconds"
"""Below a minute while the API server answers; requests are routed by the last list, however old."""
ROUTER_DISCOVERY_ERRORS: Final = "warmfleet_router_discovery_errors"
ROUTER_INDEX_BLOCKS: Final = "warmfleet_router_index_blocks"
ROUTER_PENDING_BLOCKS: Final = "warmfleet_router_pending_blocks"
ROUTER_TOKENIZERS: Final = "warmfleet_router_tokenizers"
ROUTER_STREAM_EVENTS: Final = "warmfleet_router_event_stream_events"
"""Labels `endpoint`, `event`: opened, failed, hellos_refused, snapshots, resyncs, load_only, silences."""
ROUTER_HELD_REQUESTS: Final = "warmfleet_router_held_requests"
ROUTER_HELD_TOKENS: Final = "warmfleet_router_held_tokens"
"""Label `model_name`: prompts that wait in the router for a worker with capacity."""
ROUTER_HELD_SECONDS: Final = "warmfleet_router_held_seconds"
ROUTER_WAKING_REQUESTS: Final = "warmfleet_router_waking_requests"
ROUTER_WAKING_TOKENS: Final = "warmfleet_router_waking_tokens"
"""Label `model_name`: requests that wait for their model to wake, and their prompts' tokens (bytes / 4)."""
ROUTER_WAKING_SECONDS: Final = "warmfleet_router_waking_seconds"
ROUTER_WAKING_BUCKETS: Final = (0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
ROUTER_OVERLOADED: Final = "warmfleet_router_overloaded_requests"
"""Labels `tenant`, of the key file's names, and `reason`, as `OverloadReason` of the router lists them."""
ROUTER_HELD_BUCKETS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0)
ROUTER_DECISION_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)

# The operator's own.
OPERATOR_RECONCILIATIONS: Final = "warmfleet_operator_reconciliations"
"""Label `result`: done, failed, refused, not_leading."""
OPERATOR_RECONCILE_SECONDS: Final = "warmfleet_operator_reconcile_seconds"
OPERATOR_WRITES: Final = "warmfleet_operator_writes"
"""Labels `kind`, `verb`: apply, delete, scale, label, mark, status, event."""
OPERATOR_ERRORS: Final = "warmfleet_operator_errors"
"""Label `error`: conflict, gone, throttled, refused, unreachable, other."""
OPERATOR_QUEUE_DEPTH: Final = "warmfleet_operator_queue_depth"
"""Deployments to reconcile, those due later included."""
OPERATOR_LEADER: Final = "warmfleet_operator_leader"
"""1 while this replica may write."""
OPERATOR_WATCH_BEHIND_SECONDS: Final = "warmfleet_operator_watch_behind_seconds"
"""Label `kind`: for how long its watch has missed something that a list held."""
OPERATOR_OBJECTS: Final = "warmfleet_operator_objects"
"""Label `kind`: objects that are known."""
OPERATOR_CONDITIONS: Final = "warmfleet_operator_deployments"
"""Labels `condition`, `status`: ModelDeployments, by the conditions in their status."""
OPERATOR_DEPLOYMENT_CONDITION: Final = "warmfleet_operator_deployment_condition"
"""1; labels `namespace`, `name`, `condition`, `status`: the status that each condition of it has now."""
OPERATOR_DEPLOYMENT_WANTED: Final = "warmfleet_operator_deployment_wanted_replicas"
"""Labels `namespace`, `name`."""
OPERATOR_DEPLOYMENT_READY: Final = "warmfleet_operator_deployment_ready_replicas"
"""Labels `namespace`, `name`."""
OPERATOR_DEPLOYMENT_START_SECONDS: Final = "warmfleet_operator_deployment_start_phase_seconds"
"""Labels `namespace`, `name`, `phase`: schedule, fetch and the phases of workers, of the last start."""
OPERATOR_SCALING_WANTED: Final = "warmfleet_operator_scaling_wanted_replicas"
"""Labels `namespace`, `name`: what autoscaling wants, for an HPA or KEDA that acts on it."""
OPERATOR_SCALING_RECOMMENDED: Final = "warmfleet_operator_scaling_recommended_replicas"
"""Labels `namespace`, `name`, `signal`: tokens, sequences, compute, firstToken, betweenTokens,
earlierLatency, earlierGrowth, capacityMisses, requests."""
OPERATOR_SCALING_BLIND: Final = "warmfleet_operator_scaling_blind"
"""Labels `namespace`, `name`: 1 while signals are missing, so that nothing would shrink."""
OPERATOR_SCALING_CAPACITY_PENDING: Final = "warmfleet_operator_scaling_capacity_pending_replicas"
"""Labels `namespace`, `name`: replicas that found no node for too long, or that a quota refuses."""
OPERATOR_HANDOVER_SECONDS: Final = "warmfleet_operator_handover_seconds"
OPERATOR_HANDOVER_BUCKETS: Final = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
OPERATOR_SHRINK_VICTIMS: Final = "warmfleet_operator_shrink_victims"
"""Label `choice`: `ours`, the pods that a lower number was meant to take, or `other`."""
OPERATOR_SCALING_TICK_SECONDS: Final = "warmfleet_operator_scaling_tick_seconds"
"""Time of one decision for all fleets, without the reading of routers."""
OPERATOR_SCALING_TICK_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OPERATOR_RECONCILE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
