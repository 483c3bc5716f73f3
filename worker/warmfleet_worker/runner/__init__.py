"""Runs one engine step on the device: model forward, sampling, log probabilities.

Torch is imported here and in the rooms below (`model`, `attention`) only. Imports `model`, `attention`,
`engine` (the step's types) and `kv_cache` (the layout).
"""
