"""Model files on disk: the catalog, GGUF conversion, manifests with digests, and fetching from a hub.

Imports `model.config` (what a model needs); no torch.
"""
