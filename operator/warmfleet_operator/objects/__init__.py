"""Kubernetes objects as the operator reads them. Pure functions and frozen values.

May import contracts, `settings` and `runtime.kubernetes.paths`. Public: `kinds` (kinds and their API paths),
`pods` (PodView), `jobs` (state of a fetch Job), `rollouts` (state and cause of a rollout), `served_names`
(names that a ModelDeployment claims), `deployment_state` (what its status reports), `replica_notes` (numbers
that an operator notes on a Deployment), `releases` (which release owns it), `digest` and `times`.
"""
