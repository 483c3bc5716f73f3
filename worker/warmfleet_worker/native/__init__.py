"""The native step: one C library that computes a whole step of the decoder on a CPU, and its binding.

Public: `choice.choose_native`, `model.NativeModel`. `csrc/` has the library, `build` compiles it, `levels`
names the instruction sets, `formats` what weights, keys and values are made of, `layer_tensors` the tensors
of a layer, `library` declares the functions through ctypes, `weights` packs a model, `arena` is the memory of
keys and values, `model` has weights, arena and threads, `step` is one step from its chunks to what was
computed, `choice` decides whether it computes here. Imports of `model` what imports no torch, `settings`,
`engine.batch` and `kv_cache.layout`.
"""
