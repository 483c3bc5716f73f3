"""The revision of a pod template: which pods are alike."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.names import REVISION_LABEL

_LENGTH: Final = 10


def revision(template: Mapping[str, Any]) -> str:
    """10 hexadecimal digits that follow from the template's content alone, whatever its order of keys."""
    canonical = json.dumps(template, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_LENGTH]


def with_revision(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with its revision as a label; the label is no part of the revision."""
    metadata = dict(template.get("metadata", {}))
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name != REVISION_LABEL}
    plain = {**template, "metadata": {**metadata, "labels": labels}}
    labelled = {**labels, REVISION_LABEL: revision(plain)}
    return {**plain, "metadata": {**metadata, "labels": labelled}}
