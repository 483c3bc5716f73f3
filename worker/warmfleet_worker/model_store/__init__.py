"""Model folders on disk: the catalog, GGUF conversion, manifests with digests, and fetching from a hub.

Public: `catalog.pull_model`, `manifest.verify_model_folder`, `assets.load_prompt_assets`, `verification` (a
model folder before its use) and `known_model` (its manifest when an engine starts), `wheel` (the catalog
model in a Python package), and room `fetch`. Imports contracts and `runtime.{files,home}`, no room of the
worker; its room `fetch` imports `model.config`. No torch.
"""
