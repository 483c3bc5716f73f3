"""Model folders on disk: the catalog, GGUF conversion, manifests with digests, and fetching from a hub.

Public: `catalog.pull_model`, `manifest.verify_model_folder`, `assets.load_prompt_assets`, `verification` (a
model folder before its use), `wheel` (the catalog model in a Python package), and room `fetch`. Imports
contracts and `runtime.files`, no room of the worker; its room `fetch` imports `model.config`. No torch.
"""
