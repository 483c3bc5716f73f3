"""The scenarios of `scaling_e2e.py`: a fleet that scales on a devcluster of its own. May import the product.

Each scenario is a module with a function that starts its own cluster, measures and returns an `Outcome`;
`scaling_e2e.SCENARIOS` names it. A fault that a scenario plays stays within its cluster.

- `scenario`: what a scenario returns, and the cluster with the chart in which it runs.
- `newcomer`: a replica joins a fleet under load, prewarmed and cold.
- `prewarm`: live streams beside what is computed for a victim.
- `ramp`: the load of one replica becomes one of four.
- `regret`: a cache that is too small at a low rate, beside one that no replica helps.
- `shrinks`: replicas are taken away under live streams.
- `sleeping_workers`: what the scenarios have in common whose workers compute nothing.
- `writers`: others write the number, kubectl and a client of the scale subresource.
- `zero`: requests wake a fleet that sleeps.
"""
