"""The engine without its model: scheduling, sequences, steps, messages to the server. Imports no torch.

`engine.Engine.step` is schedule, execute, apply, report; what executes is handed in. `messages` is what
passes between the server process and the engine process. Imports `kv_cache`.
"""
