"""Leader election: at most one replica of the operator writes.

May import `cluster`, `objects`, `settings` and `errors`. Public: `elector.LeaderElector`, which elects by a
Lease object, and `fence.Fence`, the deadline that every write is checked against.
"""
