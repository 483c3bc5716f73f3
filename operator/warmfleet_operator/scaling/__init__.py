"""How many replicas a model needs: pure functions from signals to a number with a reason.

`signals.merged` makes one tick's `FleetSignals` of the totals of all routers; `decide.decide` answers with a
`decision.ScalingDecision` and the next `memory.ScalingMemory`: `measure` reduces a tick to whole numbers, and
`decide.choose` needs nothing else, so that recorded inputs give the recorded decision again. One rule each:
`demand` (tokens, sequences and compute), `supply` (what a replica takes, learnt), `latency_guard` (predicted
percentiles), `late_load` (the load at which a latency target was missed), `regret` (capacity misses),
`chance` (what of a demand few requests explain), `experience` (how far it was seen to move), `outgrown` (what
was asked for before), `limits` (bounds, rates, what is unsafe), `shrink` (victim, price). `ticks` and
`entries` carry time from one tick to the next, `policy` holds every parameter.
`advice` is what a user sees of decisions, and keeps the number up where nothing acts on them. `decider` runs
all of it for one fleet, tick after tick.

Formulas: token demand against learnt supply as in llm-d's WVA 2, panic as in Knative's KPA, windows of
recommendations as in the HPA.

Imports contracts alone, so that the simulator runs the same code: no clock, no cluster, no kopf.
"""
