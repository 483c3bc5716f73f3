"""What server and router take of an engine's tokens per second. May import the product.

Benchmarks, which need `benchmarks` on PYTHONPATH:

- `engine_shares`: of our own engine, and what in a step is not the model's.
- `vllm_shares`: of vLLM on a CPU.

Both compare a fleet with an engine without its server, in `turns`: `engine_without_server` starts
`engine_alone` or `vllm_alone`, with the fleet's settings (`setups`); `options` are those of both. Both sides
answer `random_prompts`, the fleet as `streamed_prompts`.
"""
