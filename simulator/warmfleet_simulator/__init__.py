"""Simulator: replays a trace of requests through the production router and scheduler, in virtual time.

Nothing here is a model of the router or of the scheduler: both are the production code. Only the model's
forward pass is replaced, by its time, and the network, by delays.

Public: `scaling_comparison` (`compare_scaling`), `comparison` (`compare_routings`), `parallel_runs`
(`open_runs`), `grid_search` (`best_setting`), `autoscalers` (policies of other autoscalers), `simulation`
(`simulate`, `SimulationSettings`), `report` (`Report`), `progress` (`Progress`), `hardware`
(`replica_settings`), `step_times` (`StepTimes`), `workloads` (generated traffic), `traces` (recorded
traffic), `clock` (`run_in_virtual_time`), `garbage` (`seldom_collected`) and `errors`. Imports the torch-free
part of the worker, the router without its HTTP and the operator's `scaling`; the command line imports it.
"""
