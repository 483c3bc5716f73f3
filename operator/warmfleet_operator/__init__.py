"""Kubernetes operator: reconciles ModelDeployments into workers.

Rooms, each of which may import those after it: `reconcile` (one reconciliation), `status` (conditions,
events, polls of the routers), `watch` (kopf, store, queue) and `leadership`, `desired` (objects of a spec),
`objects` (Kubernetes objects as values). `app` builds them, `cluster` alone sends requests to the API server,
`keys` creates Secrets. Autoscaling will be a room `scaling` between `reconcile` and `status`.
"""
