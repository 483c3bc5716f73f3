"""Steps on a GPU, by kernels in Triton: `steps.GpuSteps` is what `runner` uses.

`step_shape` has how large a step is and which captured graph has room for it; `graphs` has those graphs.
`inputs` is what changes from step to step, `decoder` the layers; `launches` starts the `kernels`. Where they
do not compute, PyTorch does alone (`attention.torch_gather`). Imports `model`, `attention`, `engine.batch`
and `kv_cache`; its own files import those before them: `step_shape`, `step_tables`, `kernels`, `launches`,
`inputs`, `decoder`, `graphs`, `steps`.
"""
