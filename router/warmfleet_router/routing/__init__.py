"""Chooses the worker for a request: prediction, cost, policy, lease, decision record.

`picker` is the entry point. Pure but for its books: `leases`, `open_dispatches`, `pending_blocks`.
Imports `workers` (snapshots and the prefix index) and `discovery`.
"""
