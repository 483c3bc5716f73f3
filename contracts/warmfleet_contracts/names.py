"""Names that are API: what users select on, script against or find in a cluster."""

from typing import Final

# The custom resource.
API_GROUP: Final = "warmfleet.dev"
API_VERSION: Final = "warmfleet.dev/v1alpha1"
KIND: Final = "ModelDeployment"
PLURAL: Final = "modeldeployments"
SHORT_NAME: Final = "mdep"
CATEGORY: Final = "warmfleet"

# Labels of everything that belongs to a ModelDeployment.
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MODEL_DEPLOYMENT_LABEL: Final = "warmfleet.dev/model-deployment"
WARMFLEET_COMPONENT_LABEL: Final = "warmfleet.dev/component"
REVISION_LABEL: Final = "warmfleet.dev/revision"

# Containers of a worker pod.
ENGINE_CONTAINER: Final = "engine"
MODEL_FETCH_CONTAINER: Final = "model-fetch"
ADAPTER_CONTAINER: Final = "adapter"

# Environment. Secrets travel here and never on a command line, which every user of a machine can read.
HOME_VARIABLE: Final = "WARMFLEET_HOME"
WORKER_TOKEN_VARIABLE: Final = "WARMFLEET_WORKER_TOKEN"  # noqa: S105 - the variable's name, not a token
SALT_KEY_VARIABLE: Final = "WARMFLEET_SALT_KEY"

# Default addresses.
LOCAL_HOST: Final = "127.0.0.1"
ROUTER_PORT: Final = 8080
LOCAL_WORKER_PORT: Final = 8100
"""First worker of a local fleet; the others follow."""
CLUSTER_WORKER_PORT: Final = 8000
OPERATOR_HEALTH_PORT: Final = 8081
OPERATOR_METRICS_PORT: Final = 8082

MAX_DEPLOYMENT_NAME_LENGTH: Final = 52
"""Children are named after their deployment; a label value ends at 63 characters."""
