"""How many replicas a Deployment gets, and which pods go when the number is lowered.

May import `status`, `objects`, `scaling`, `watch`, `metrics` and contracts. Public: `number.replica_number`
(spec, Deployment and decision to a number), `victims` (which pods go, by what only they hold), `shrink_step`
(mark, wait, lower), all pure; `shrinks.Shrinks` (asks routers what replicas hold, remembers what it marked).

There is one way to fewer replicas, for every writer of the number: all victims are marked by their deletion
cost, two seconds pass, the Deployment is lowered by a single write, and Kubernetes deletes and drains pods.
A mark alone has no effect, so an operator that ends between two steps leaves nothing to undo.
"""
