"""Names that are API: what users select on, script against or find in a cluster."""

from typing import Final

# The custom resource.
API_VERSION: Final = "warmfleet.dev/v1alpha1"
KIND: Final = "ModelDeployment"

# Environment. Secrets travel here and never on a command line, which every user of a machine can read.
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

MAX_DEPLOYMENT_NAME_LENGTH: Final = 52
"""Children are named after their deployment; a label value ends at 63 characters."""
