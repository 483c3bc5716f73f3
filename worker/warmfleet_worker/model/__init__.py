"""The decoder: configuration, layers, rotary embeddings, weights from safetensors.

Public: `config.load_model_config`, `shapes` (tensors of a checkpoint, sizes that follow from them),
`loader.load_decoder` and `open_checkpoint`, `layers`, `rope`, `transformer.Decoder`. Imports torch and
`attention.backend` (the protocol).
"""
