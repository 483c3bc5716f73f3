"""Names that are API: what users select on, script against or find in a cluster."""

from typing import Final

# The custom resource.
API_VERSION: Final = "warmfleet.dev/v1alpha1"
KIND: Final = "ModelDeployment"

# Environment. Secrets are passed here and never on a command line, which every user of a machine can read.
HOME_VARIABLE: Final = "WARMFLEET_HOME"
WORKER_TOKEN_VARIABLE: Final = "WARMFLEET_WORKER_TOKEN"  # noqa: S105 - the variable's name, not a token
SALT_KEY_VARIABLE: Final = "WARMFLEET_SALT_KEY"
API_KEY_VARIABLE: Final = "WARMFLEET_API_KEY"
"""A client's key for the router; `warmfleet` commands send it."""
KEYS_FILE_VARIABLE: Final = "WARMFLEET_KEYS_FILE"

# Default addresses.
LOCAL_HOST: Final = "127.0.0.1"
ROUTER_PORT: Final = 8080
LOCAL_WORKER_PORT: Final = 8100
"""First worker of a local fleet; the others follow."""

MAX_MODEL_NAME_CHARS: Final = 256
"""By which requests ask for a model."""
MAX_DEPLOYMENT_NAME_LENGTH: Final = 52
"""Children are named after their deployment; a label value ends at 63 characters."""

# The group and what belongs to it in a cluster.
GROUP: Final = "warmfleet.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "modeldeployments"
FIELD_MANAGER: Final = "warmfleet-operator"
STATUS_FIELD_MANAGER: Final = "warmfleet-operator-status"
CONFLICT_FIELD_MANAGER: Final = "warmfleet-operator-conflict"
"""Of the one condition that an operator writes whose release does not own the ModelDeployment's objects."""

# Labels. Selectors are immutable in a Deployment: these two never change.
MODEL_DEPLOYMENT_LABEL: Final = "warmfleet.dev/model-deployment"
COMPONENT_LABEL: Final = "warmfleet.dev/component"
REVISION_LABEL: Final = "warmfleet.dev/revision"
"""Hash of the pod template; on pods only, in no selector."""
RELEASE_LABEL: Final = "warmfleet.dev/release"
RELEASE_NAMESPACE_LABEL: Final = "warmfleet.dev/release-namespace"
"""On every child, not on pods: name and namespace of the release whose operator writes it."""
FETCHING_LABEL: Final = "warmfleet.dev/fetching"
"""`true` on pods that fetch their model themselves, until they have it: only these may leave the cluster."""
APPLIED_ANNOTATION: Final = "warmfleet.dev/applied"
"""On every child: digest of what the operator last applied."""
ROLLOUT_ANNOTATION: Final = "warmfleet.dev/rollout"
"""On a Deployment: the cause of its newest pod template, Spec or Upgrade."""
TEMPLATE_SPEC_ANNOTATION: Final = "warmfleet.dev/template-spec"
"""On a Deployment: digest of the part of `spec` that shapes its pods."""
RESOLVED_ANNOTATION: Final = "warmfleet.dev/resolved-revision"
"""On a Deployment with a model at a branch or tag: `owner/name@revision`, a blank, the commit of its pods."""
REPLICAS_ANNOTATION: Final = "warmfleet.dev/replicas"
"""On a Deployment whose ModelDeployment scales: the number of replicas that the operator set last.

Empty while the fleet is suspended or its mode is not Active: with 0 replicas it does not sleep then."""
FIRST_REPLICAS_ANNOTATION: Final = "warmfleet.dev/first-replicas"
"""On such a Deployment: `spec.replicas` at the time from which autoscaling moved the number."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own, on pods: of equally ready ones a ReplicaSet deletes the one with the lowest first."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "warmfleet"
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
APP_COMPONENT_LABEL: Final = "app.kubernetes.io/component"
APP_NAME: Final = "warmfleet"
WORKER_COMPONENT: Final = "worker"
MODEL_FETCH_COMPONENT: Final = "model-fetch"
ROUTER_COMPONENT: Final = "router"
OPERATOR_COMPONENT: Final = "operator"

# Containers, volumes and ports of a worker pod.
ENGINE_CONTAINER: Final = "engine"
MODEL_FETCH_CONTAINER: Final = "model-fetch"
MODEL_VOLUME: Final = "model"
MODEL_MOUNT_PATH: Final = "/models"
SHARED_MEMORY_VOLUME: Final = "shared-memory"
TEMPORARY_VOLUME: Final = "tmp"
"""The one writable folder of a pod whose root is read-only; also its HOME."""
CA_BUNDLE_VOLUME: Final = "ca-bundle"
CA_BUNDLE_KEY: Final = "ca.crt"
HTTP_PORT_NAME: Final = "http"
WORKER_PORT: Final = 8000
OPERATOR_HEALTH_PORT: Final = 8081
OPERATOR_METRICS_PORT: Final = 8082

# Secrets of a release, and the one in each namespace that holds models.
ROOT_KEYS_WORKER_TOKEN: Final = "worker-token-root"  # noqa: S105 - a key in a Secret, not a token
ROOT_KEYS_SALT: Final = "salt-key"
ROOT_KEYS_OPERATOR_TOKEN: Final = "operator-token"  # noqa: S105 - as above
NAMESPACE_SECRET: Final = "warmfleet-worker-key"  # noqa: S105 - a Secret's name
NAMESPACE_SECRET_KEY: Final = "namespace-key"  # noqa: S105 - a key in a Secret, not a token

# Environment of cluster processes.
POD_UID_VARIABLE: Final = "WARMFLEET_POD_UID"
POD_NAMESPACE_VARIABLE: Final = "WARMFLEET_POD_NAMESPACE"
POD_NAME_VARIABLE: Final = "WARMFLEET_POD_NAME"
NAMESPACE_KEY_VARIABLE: Final = "WARMFLEET_NAMESPACE_KEY"
"""Hex. A worker derives its own token from it and its pod's uid."""
WORKER_TOKEN_ROOT_VARIABLE: Final = "WARMFLEET_WORKER_TOKEN_ROOT"  # noqa: S105 - the variable's name
"""Hex. Routers and the operator derive every worker's token from it."""
OPERATOR_TOKEN_VARIABLE: Final = "WARMFLEET_OPERATOR_TOKEN"  # noqa: S105 - the variable's name
"""Bearer token by which routers know the operator: `/internal/` and `/metrics`, no inference."""
IMAGE_HOME_VARIABLE: Final = "WARMFLEET_IMAGE_HOME"
"""A warmfleet home inside the image, read-only: baked models; in a devcluster the native step, too."""
