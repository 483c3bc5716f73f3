"""Workloads: requests that are generated, one after the other, from a seed and a few parameters.

Public: `named` (`GeneratedTraffic`, `AnyWorkload`, `workload_of`). One module per workload (`steady`,
`bursty`, `shared_prompts`, `diurnal`, `agents`); `workload` has what all have, `arrivals` and `lengths` what
they draw, `sessions` prompts that grow. Imports `traces`.
"""
