"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Public: `config.load_model_config`, `end_tokens.known_end_tokens`, `shapes.model_size`, `cost.model_cost`,
`checkpoint.open_checkpoint`,
`int8.quantised`, `rotary_frequencies.rotary_table`, `computed.Computed`, and of PyTorch
`loader.load_decoder`, `layers`, `rope`, `transformer.Decoder`: these import torch, and `attention.backend`
(the protocol). Imports `engine.roofline`.
"""
