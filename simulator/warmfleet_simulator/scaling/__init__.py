"""Scaling of a simulated fleet: pods that take time to start, and what decides their number.

Public: `pods` (`Pods`), `autoscaler` (`Autoscaler`, `Tick`, `Wanted`, `FixedReplicas`), `operator_policy`
(`OperatorAutoscaler`: the production policy), `replica_change` (`ReplicaChange`: when and why), `objective`
(`Objective`, `read_objective`) and `bounds` (`peak_static`, `clairvoyant`: pure). Imports `router`,
`replica` and the operator's `scaling`.
"""
