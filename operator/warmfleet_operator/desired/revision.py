"""The revision of a pod template: pods with the same revision were made from the same template."""

from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.names import REVISION_LABEL
from warmfleet_operator.objects.digest import digest

_LENGTH: Final = 10


def revision(template: Mapping[str, Any]) -> str:
    """10 hexadecimal digits over the template's content; the order of keys does not matter."""
    return digest(template, _LENGTH)


def with_revision(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with its revision as a label; the label is not part of the revision."""
    metadata = dict(template.get("metadata", {}))
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name != REVISION_LABEL}
    plain = {**template, "metadata": {**metadata, "labels": labels}}
    labelled = {**labels, REVISION_LABEL: revision(plain)}
    return {**plain, "metadata": {**metadata, "labels": labelled}}
