"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Public: `config.load_model_config`, `loader.load_decoder`, `transformer.Decoder`. Imports torch and
`attention.backend` (the protocol).
"""
