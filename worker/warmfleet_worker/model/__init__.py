"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Public: `config.load_model_config`, `shapes.model_size`, `loader.load_decoder`, `transformer.Decoder`. Imports
torch, but for `config` and `shapes`, and `attention.backend` (the protocol).
"""
