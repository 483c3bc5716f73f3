"""What a ModelDeployment wants in a cluster, as plain Kubernetes objects: pure functions."""
