"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Imports `attention` (the backend's protocol) only.
"""
