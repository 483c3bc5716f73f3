"""What a ModelDeployment wants in a cluster, as plain Kubernetes objects: pure functions.

`objects.desired_objects` is the entry point. Imports `objects` and contracts.
"""
