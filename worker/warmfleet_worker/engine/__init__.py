"""The engine without its model: validation, scheduling, steps, and messages to and from the server.

Public: `engine.Engine`, whose `step` is schedule, execute, apply, report; `scheduler.Scheduler`; `batch`,
the types between scheduler and runner; `messages`, between server and engine process; `sampling_params`,
`logprobs` and `validation`, which the server uses, too. Imports `kv_cache`.
"""
