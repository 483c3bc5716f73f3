"""What the operator knows from its routers.

May import `keys`, `cluster`, `objects`, `scaling`, `metrics`, `settings` and contracts. Public:
`client.RouterClient` asks all routers for one thing; with it `poller.RouterPoller` asks for their workers and
keeps the `fleet.FleetView`, `totals.TotalsReader` asks for totals every other second, and
`handover.RouterHandover` sends them the replicas that are about to go. `hit_rates.HitRates` are those of the
last minutes, out of such views (pure, as `fleet`).
"""
