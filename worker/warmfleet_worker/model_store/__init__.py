"""Model folders on disk: the catalog, GGUF conversion, manifests with digests, and fetching from a hub.

Public: `catalog.pull_model`, `manifest.verify_model_folder`, `assets.load_prompt_assets`, and room `fetch`.
Imports contracts, `runtime.files` and `model.config` (validation before a download); no torch.
"""
