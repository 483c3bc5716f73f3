"""Kubernetes operator: reconciles ModelDeployments into workers.

Rooms, each of which may import those after it: `reconcile` (one reconciliation), `replicas` (the number of a
Deployment, and which pods go), `status` (conditions, events, advice), `routers` (what they report), `watch`
(kopf, store, queue), `leadership` and `hub` (commits of branches), `desired` (objects of a spec), `objects`
(Kubernetes objects as values) and `scaling` (how many replicas). `app` builds them, `cluster` sends every
request to the API server except the lists and watches of kopf (`watch/kopf_watches`), `keys` creates Secrets.
Rooms share `settings`, `metrics` and `errors`.
"""
