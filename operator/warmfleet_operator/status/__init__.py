"""The status of a ModelDeployment: conditions, figures and events, and the polls of the routers.

May import `objects`, `watch`, `keys`, `cluster`, `settings` and contracts. Public:
`observation.Observation` (the input), `problem.Problem`, `status.status_of`, `conditions.conditions_of`,
`stalls.stall` (why only a user can change something), `events.changes_to_announce`, `hit_rates.HitRates`
(pure), and `routers.RouterPoller`, which asks the routers and keeps their `fleet.FleetView`.
"""
