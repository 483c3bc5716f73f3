"""Runs one engine step on the device: model forward, sampling, log probabilities.

Public: `runner.load_runner` and `ModelRunner`, whose steps are `runner_step.RunnerStep`; `step_model` is what
it runs, by the room `native` or `torch_model`; `runner_settings` has the sizes; `memory_budget` and its
errors. `penalties` and `scoring` are numpy's, for both. `device` finds a GPU. `torch_loading`, `torch_model`,
`sampler` and `philox` import torch, and `runner` them only where torch computes. Imports `model`,
`attention`, `native`, `engine` (the step's types) and `kv_cache.layout`.
"""
