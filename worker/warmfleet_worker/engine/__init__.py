"""The engine without its model: validation, scheduling, steps, and messages to and from the server.

Public: `engine.Engine`, whose steps have two halves: `begin` is schedule and hand over, `finish` is wait,
apply and report; `scheduler.Scheduler` with `sequence`, `sequence_tokens` and `step_plan`; `step_recovery`,
computes a failing step in pieces; `reporter`, cache changes and load; `admitted_dispatches`, those of
each router; `step_time`, what a step costs; `roofline`, how near it is to the machine's limits;
`hit_verifier`, recomputes a sample of hits; `capacity`, what a pool has room for; `batch`, the types between
scheduler and runner; `messages` and `updates`, between server and engine process; `sampling_params`,
`logprobs` and `validation`, which the server uses, too. Imports `kv_cache`.
"""
