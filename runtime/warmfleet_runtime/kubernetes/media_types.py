"""Media types of the Kubernetes API: https://kubernetes.io/docs/reference/using-api/api-concepts/."""

from typing import Final

JSON: Final = "application/json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML, too."""
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
"""Lists of built-in kinds are merged by key."""
