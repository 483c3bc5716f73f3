"""VLLM as the engine: a process that speaks the messages of `engine.messages` and computes with `AsyncLLM`.

It runs in an interpreter of its own, which has vLLM. Only `llm` and `cpu` import vLLM, and only
`event_socket` ZMQ.

- `process` is what the worker's server starts; `loop` follows the server's messages, vLLM and its events.
- `arguments` has vLLM's options for the settings, `extra_arguments` those that a user gives besides,
  `sampling` those of a request, `scores` its log probabilities back.
- `event_socket` receives vLLM's cache events in `socket_folder`, `kv_events` reads them, `announcements`
  keeps them until their step is computed, `resident` names vLLM's blocks as routers do.
- `shared_prefixes` has prompts wait for blocks that another one computes.
- `sequences` follows what each live sequence has computed, `load` and `reports` make reports of it.
- `llm` adapts `AsyncLLM` to `outputs`; `refusals` has what it does not do when it is asked, `cpu` the classes
  that it computes with on a CPU.
- `versions` has the versions that it is tested with, `start_failures` the reason where vLLM does not start.

Imports `engine`, `engine_child`, `kv_cache`, `model_store` and `settings`.
"""
