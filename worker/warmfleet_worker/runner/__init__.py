"""Runs one engine step on the device: model forward, sampling, log probabilities.

Public: `runner.load_runner` and `ModelRunner`, whose steps are `runner_step.RunnerStep`; `step_model` is what
it runs, by `torch_model` or the room `native`; `memory_budget` and its errors. Imports torch, `model`,
`attention`, `native`, `engine` (the step's types) and `kv_cache.layout`.
"""
