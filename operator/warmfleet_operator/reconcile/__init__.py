"""One reconciliation of one ModelDeployment: observe, desire, plan, write, report.

`reconcile` is the entry point, `plan` decides (pure), `writer` acts. Imports all other rooms; only `app`
imports it.
"""
