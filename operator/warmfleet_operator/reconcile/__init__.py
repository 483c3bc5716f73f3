"""One reconciliation of one ModelDeployment: observe, compute desired objects, plan, write, report status.

May import every other room; only `app` imports it. Public: `reconcile.Reconciler` (the entry point),
`wanted.wanted_by` and `plan.plan_changes` (pure), `writer.Writer` (executes plans and writes statuses).
"""
