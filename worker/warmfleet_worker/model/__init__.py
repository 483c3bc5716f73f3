"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Public: `config.load_model_config`, `shapes.model_size`, `cost.model_cost`, `loader.load_decoder` and
`open_checkpoint`, `layers`, `rope`, `transformer.Decoder`, `computed.Computed`. Imports torch, but for
`config`, `shapes` and `cost`, and `attention.backend` (the protocol) and `engine.roofline`.
"""
