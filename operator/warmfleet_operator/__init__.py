"""Kubernetes operator: reconciles ModelDeployments into workers."""
