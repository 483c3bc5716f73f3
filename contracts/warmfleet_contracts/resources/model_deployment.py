"""`ModelDeployment`, the one custom resource: what a user writes, checked field by field.

The same resource drives `warmfleet up` and the operator. Fields are camelCase in the manifest; an
unknown field is an error, so that a misspelt one is not ignored. `manifests.py` reads one from YAML.
crds/warmfleet.dev_modeldeployments.yaml is the same schema for the API server, and a test compares the two.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from warmfleet_contracts.names import API_VERSION, KIND, MAX_DEPLOYMENT_NAME_LENGTH
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_contracts.resources.fields import (
    LOCAL_CONTEXT,
    MOST_BYTES,
    Labels,
    LabelValue,
    NameReference,
    ObjectName,
    Opaque,
    Resource,
    Switch,
    require_distinct,
)
from warmfleet_contracts.resources.model_spec import ModelSpec
from warmfleet_contracts.resources.ownership import claimed_names
from warmfleet_contracts.resources.quantities import Bytes

_BOOKKEEPING: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


ExtraArgument = Annotated[str, Field(max_length=512, pattern=r"^[!-~][ -~]*$")]
"""One word of a command line."""


class EnvironmentVariable(Resource):
    """One variable of the engine's environment."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256, description="Its name.")
    value: str | None = Field(default=None, max_length=32_768, description="Its value. Default: empty.")
    value_from: Opaque | None = Field(default=None, description="An EnvVarSource instead of a value.")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if len(self.chosen("value", "value_from")) > 1:
            raise ValueError("give at most one of value, valueFrom; given: value and valueFrom")
        if self.name.startswith("WARMFLEET_"):
            raise ValueError(f"{self.name}: names that begin with WARMFLEET_ are set by warmfleet itself")
        return self


class EngineSpec(Resource):
    """The engine and its limits."""

    type: Literal["Warmfleet", "VLLM"] = Field(
        default="Warmfleet", description="Which engine computes: Warmfleet, the one in this project, or VLLM."
    )
    image: str = Field(
        default="", max_length=512, pattern=r"^[!-~]*$", description="Worker image; empty = the chart's."
    )
    dtype: Literal["Auto", "BFloat16", "Float16", "Float32"] = Field(
        default="Auto",
        description="--dtype: type of weights and activations. Auto = the device's best.",
    )
    weight_quantization: Literal["None", "Int8"] = Field(
        default="None", description="--quantization: how weights are kept in memory. Int8 = 8 bits, on CPUs."
    )
    max_model_length_tokens: int | None = Field(
        default=None,
        ge=2,
        le=16_777_216,
        description="--max-model-len: prompt and answer together, in tokens. Default: the model's context.",
    )
    max_running_sequences: int = Field(
        default=64, ge=1, le=4096, description="--max-num-seqs: sequences in one step."
    )
    max_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="--max-num-batched-tokens: tokens in one step. Default: the engine's.",
    )
    target_step_milliseconds: int | None = Field(
        default=None,
        ge=10,
        le=10_000,
        description="Milliseconds that a step with prompts takes beside answers. Default: 100.",
    )
    verify_hits: str | None = Field(
        default=None,
        max_length=11,
        pattern=r"^1/[1-9][0-9]{0,8}$",
        description="--verify-hits: share 1/N of cache hits that is computed again and compared.",
    )
    extra_args: tuple[ExtraArgument, ...] = Field(
        default=(),
        max_length=64,
        strict=False,
        description="vLLM's own flags, one word each, up to 64 of up to 512 characters.",
    )
    env: tuple[EnvironmentVariable, ...] = Field(
        default=(), max_length=64, strict=False, description="Additional environment, up to 64 variables."
    )

    @model_validator(mode="after")
    def _distinct_variables(self) -> Self:
        require_distinct((variable.name for variable in self.env), "env")
        return self

    @model_validator(mode="after")
    def _flags_of_vllm(self) -> Self:
        if self.extra_args and self.type != "VLLM":
            raise ValueError(
                f"extraArgs are vLLM's flags, and type is {self.type}; use the fields, or type VLLM"
            )
        return self

    @model_validator(mode="after")
    def _one_size_of_steps(self) -> Self:
        if len(self.chosen("max_batched_tokens", "target_step_milliseconds")) > 1:
            raise ValueError("give at most one of maxBatchedTokens, targetStepMilliseconds")
        return self

    @model_validator(mode="after")
    def _fields_of_warmfleet(self) -> Self:
        if self.target_step_milliseconds is not None and self.type != "Warmfleet":
            raise ValueError(
                f"targetStepMilliseconds is of the engine Warmfleet, and type is {self.type}; use "
                "maxBatchedTokens"
            )
        if self.verify_hits is not None and self.type != "Warmfleet":
            raise ValueError(
                f"verifyHits compares blocks of the engine Warmfleet, and type is {self.type}; remove it, "
                "or the type"
            )
        return self


class KvCacheSpec(Resource):
    """The memory that holds keys and values: exactly one of size, deviceMemoryPercent."""

    size_bytes: Bytes | None = Field(
        default=None,
        alias="size",
        ge=2**20,
        le=MOST_BYTES,
        description="--kv-cache-memory-bytes: bytes per replica, as a quantity from 1Mi to 1Pi.",
    )
    device_memory_percent: int | None = Field(
        default=None,
        ge=1,
        le=95,
        description="--gpu-memory-utilization: percent of an accelerator's memory, 1..95.",
    )
    dtype: Literal["Auto", "Int8", "Int4"] = Field(
        default="Auto", description="--kv-cache-dtype: type of keys and values. Auto = the engine's dtype."
    )
    block_size_tokens: Literal[16, 32, 64, 128] = Field(
        default=16, description="--block-size: tokens per block. Part of the cache identity."
    )
    prefix_caching: Switch = Field(
        default="Enabled",
        description="--enable-prefix-caching: reuse the blocks of earlier prompts.",
    )
    sharing: Literal["Tenant", "Deployment"] = Field(
        default="Tenant", description="Which requests share cached blocks: those of one tenant, or all."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        self.require_one("size_bytes", "device_memory_percent")
        return self


class RoutingSpec(Resource):
    """How the router chooses a worker."""

    policy: Literal["LowestCost", "LeastLoaded", "RoundRobin", "ConsistentHash"] = Field(
        default="LowestCost",
        description="LowestCost weighs what a worker holds against its load.",
    )


class RolloutSpec(Resource):
    """How replicas are replaced, and how long they may take to start and to drain."""

    max_surge: int = Field(default=1, ge=0, le=100, description="Additional replicas during a rollout.")
    max_unavailable: int = Field(
        default=0, ge=0, le=100, description="Replicas that may be missing meanwhile"
    )
    drain_timeout_seconds: int = Field(
        default=300, ge=0, le=3600, description="Seconds a stopping worker may finish its streams."
    )
    startup_timeout_seconds: int = Field(
        default=1800, ge=1, le=86_400, description="Seconds a worker may load before it counts as failed."
    )
    prewarm_timeout_seconds: int = Field(
        default=10, ge=0, le=300, description="Seconds routers may have a new worker compute hot prefixes."
    )

    @model_validator(mode="after")
    def _can_roll(self) -> Self:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise ValueError("maxSurge and maxUnavailable are both 0: no replica could ever be replaced")
        return self


class AcceleratorSpec(Resource):
    """The device that a worker pod asks for."""

    resource_name: str = Field(
        default="nvidia.com/gpu",
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=253,
        description="Extended resource of the device plugin, as domain/name.",
    )
    count: int = Field(default=1, ge=1, le=64, description="--tensor-parallel-size: devices per replica.")
    runtime_class_name: ObjectName | None = Field(default=None, description="Default: the node's.")
    shared_memory_size: Bytes | None = Field(
        default=None,
        ge=1,
        le=MOST_BYTES,
        description="Bytes of /dev/shm, as a quantity to 1Pi. Default: the runtime's; 2Gi for devices.",
    )


class PodTemplate(Resource):
    """Overlay over the worker pod; lists merge by key."""

    metadata: Opaque | None = Field(default=None, description="Labels and annotations to add.")
    spec: Opaque | None = Field(default=None, description="PodSpec fields to add or replace.")


class ModelDeploymentSpec(Resource):
    """What is wanted."""

    model: ModelSpec = Field(description="What is served.")
    engine: EngineSpec = Field(default_factory=EngineSpec, description="The engine and its limits.")
    kv_cache: KvCacheSpec = Field(description="The memory that holds keys and values.")
    replicas: int = Field(default=1, ge=0, le=1000, description="Workers, within the bounds of autoscaling.")
    autoscaling: AutoscalingSpec | None = Field(default=None, description="Default: fixed replicas.")
    routing: RoutingSpec = Field(default_factory=RoutingSpec, description="How the router chooses.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How replicas are replaced.")
    accelerator: AcceleratorSpec | None = Field(default=None, description="Device per replica.")
    resources: Opaque | None = Field(default=None, description="ResourceRequirements of the engine.")
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = Field(
        default=None, description="Labels that a node must have."
    )
    tolerations: tuple[Opaque, ...] = Field(
        default=(), max_length=64, strict=False, description="Kubernetes tolerations."
    )
    affinity: Opaque | None = Field(default=None, description="Kubernetes affinity.")
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    image_pull_secrets: tuple[NameReference, ...] = Field(
        default=(), max_length=16, strict=False, description="Secrets for private registries."
    )
    pod_template: PodTemplate | None = Field(default=None, description="Overlay over the worker pod.")
    suspend: bool = Field(default=False, description="true stops every replica and keeps the resource.")

    @model_validator(mode="after")
    def _distinct_secrets(self) -> Self:
        require_distinct((secret.name for secret in self.image_pull_secrets), "imagePullSecrets")
        return self

    @model_validator(mode="after")
    def _replicas_within_autoscaling(self) -> Self:
        if self.autoscaling is not None and self.replicas > self.autoscaling.max_replicas:
            raise ValueError(
                f"replicas {self.replicas} is greater than autoscaling.maxReplicas "
                f"{self.autoscaling.max_replicas}"
            )
        return self

    @model_validator(mode="after")
    def _capacity_misses_of_a_cache(self) -> Self:
        if (
            self.autoscaling is not None
            and self.autoscaling.capacity_misses is not None
            and self.autoscaling.capacity_misses.mode == "Enabled"
            and self.kv_cache.prefix_caching == "Disabled"
        ):
            raise ValueError(
                "autoscaling.capacityMisses counts misses of the prefix cache, and kvCache.prefixCaching is "
                "Disabled"
            )
        return self

    @model_validator(mode="after")
    def _verified_hits_of_a_cache(self) -> Self:
        if self.engine.verify_hits is not None and self.kv_cache.prefix_caching == "Disabled":
            raise ValueError(
                "engine.verifyHits compares hits of the prefix cache, and kvCache.prefixCaching is Disabled"
            )
        return self

    @model_validator(mode="after")
    def _percent_of_a_device(self, validation: ValidationInfo) -> Self:
        # `warmfleet up` knows no accelerators and refuses the percentage itself, with its own advice.
        local = (validation.context or {}).get(LOCAL_CONTEXT)
        if self.kv_cache.device_memory_percent is not None and self.accelerator is None and not local:
            raise ValueError(
                "kvCache.deviceMemoryPercent is a share of an accelerator's memory; give accelerator, "
                "or kvCache.size"
            )
        return self


class Metadata(Resource):
    """Name and labels. The API server's own bookkeeping is accepted and dropped."""

    name: str = Field(
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        max_length=MAX_DEPLOYMENT_NAME_LENGTH,
        description="Lower case letters, digits and dashes, from a letter, at most 52.",
    )
    namespace: ObjectName | None = Field(default=None, description="Default: the caller's.")
    labels: Labels | None = Field(default=None, description="Labels, up to 64.")
    annotations: Labels | None = Field(default=None, description="Annotations, up to 64.")

    @model_validator(mode="before")
    @classmethod
    def _without_bookkeeping(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if key not in _BOOKKEEPING}


class ModelDeployment(Resource):
    """A model served by a fleet of workers."""

    api_version: Literal["warmfleet.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["ModelDeployment"] = Field(description=f"Always {KIND}.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: ModelDeploymentSpec = Field(description="What is wanted.")
    status: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        default=None, description="What the operator observed; ignored in a manifest."
    )

    @property
    def served_names(self) -> tuple[str, ...]:
        """Values of `model` that requests may use; never empty."""
        return claimed_names(self.spec.model.served_names, self.metadata.name)
