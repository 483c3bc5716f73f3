"""Decodes on a GPU: a step of one token per sequence as one captured graph of kernels.

`graphs` has the captured graphs, one per size of batch, and `graph_rows` chooses among them: both are what
`runner` uses. `inputs` is what changes from step to step, `decoder` the layers of a step; `launches` starts
the `kernels`, which are in Triton. A prefill, and a step of more sequences than a graph has, are PyTorch's
alone (`attention.torch_gather`). Imports `model`, `attention`, `engine.batch` and `kv_cache`.
"""
