"""`warmfleet bench engine`: what the engine reaches of the machine's limits, and what others reach.

`run` chooses what `benchmark` measures; `results` holds what was measured, targets and charts; `cases` are
the steps, `model` the model. Every engine is a process: `programs` starts and asks it, `case_loop` is its
other end, and `own_program`, `llama_program`, `transformers_program` and `vllm_program` compute;
`reads_program` reads what they read, and computes nothing. `gguf_file`
and `random_model` write the same weights for all. `llama_program`, `vllm_program`, `case_loop` and `cases`
import nothing but Python's library: they run in environments of llama.cpp's and vLLM's own. Imports the
modules of `bench` beside it, never `prefix` or `cache`.
"""
