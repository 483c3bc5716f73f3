"""What the operator knows of the cluster, and which deployment is reconciled next.

`handlers` (kopf) feeds the `store`, `sync` checks it against lists, `queue` holds the keys to reconcile.
Imports `objects` and `cluster`.
"""
