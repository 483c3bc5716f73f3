"""Runs one engine step on the device: model forward, sampling, log probabilities.

Public: `runner.load_runner` and `ModelRunner`; `memory_budget` and its errors. Imports torch, `model`,
`attention`, `engine` (the step's types) and `kv_cache.layout`.
"""
