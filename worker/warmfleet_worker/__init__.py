"""The inference engine and its OpenAI-compatible HTTP server.

Its processes start here: `__main__`, the server of one worker; `engine_process`, its child with the model,
or `vllm_engine` with vLLM; `fetch`, the command of the Jobs and init containers that fetch a model; `parity`,
which compares an engine's arithmetic with a plain one. Rooms: `server`, `engine`, `kv_cache`, `runner`,
`native`, `gpu`, `attention`, `model`, `model_store`, `roofline`. Only `runner`, `gpu`, `model`, `attention`,
`roofline` and `parity` import torch, and an engine imports it only where `native` does not compute. Rooms
share `settings`, `metrics`, `start_clock`, `termination_message` and `pytorch`: whether it is installed.
`__main__` starts the engine (`engine_start`, `engine_program`) before it imports `app`, which serves; every
engine process begins with `engine_child`.
"""
