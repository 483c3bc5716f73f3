"""The status of a ModelDeployment: conditions, figures and events, and the advice of autoscaling.

May import `routers`, `objects`, `scaling`, `watch` and contracts. Public: `observation.Observation` (the
input), `problem.Problem`, `status.status_of`, `conditions.conditions_of`, `stalls.stall` (why only a user can
change something), `events.changes_to_announce`, `replica_state` (replicas as the scaling policy sees them),
`scaling_status` and `start_status` (all pure). `advisor.ScalingAdvisor` decides by totals and keeps the
advice.
"""
