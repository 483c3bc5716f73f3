"""Computes the Kubernetes objects that a ModelDeployment asks for. Pure functions over plain dictionaries.

May import `objects`, `settings` and contracts. Public: `objects.desired_objects` (the entry point),
`checked_deployment.CheckedDeployment` (its input), `model.is_fetched`, `worker.replicas`, `commits` (of
branches and tags) and `errors`.
"""
