"""The status of a ModelDeployment: conditions, figures and events, and the polls of the routers.

May import `objects`, `scaling`, `watch`, `keys`, `cluster`, `settings` and contracts. Public:
`observation.Observation` (the input), `problem.Problem`, `status.status_of`, `conditions.conditions_of`,
`stalls.stall` (why only a user can change something), `events.changes_to_announce`, `hit_rates.HitRates`,
`replica_state` (replicas as the scaling policy sees them) and `scaling_status` (all pure).
`routers.RouterPoller` asks the routers and keeps their `fleet.FleetView`; `totals.TotalsReader` asks them for
totals every other second, both by one `router_client`. `advisor.ScalingAdvisor` decides by the
totals, and keeps the advice.
"""
