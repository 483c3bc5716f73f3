"""Fills the caches of new workers before they take requests.

Public: `hot_prefixes` (`HotPrefixes`: beginnings of prompts that came again; pure) and `prewarmer`
(`Prewarmer`: has each newcomer compute the best of them). Imports `metrics`, `workers` and contracts.
"""
