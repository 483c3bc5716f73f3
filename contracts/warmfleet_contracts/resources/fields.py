"""What all parts of a manifest have in common: how they are read, and the small types that they share."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

LOCAL_CONTEXT: Final = "local"
"""Validation context flag: set while reading for `warmfleet up`, which alone accepts `localPath`."""

ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Labels = Annotated[dict[str, str], Field(max_length=64)]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
Opaque = Annotated[dict[str, Any], Field(max_length=64)]
"""A Kubernetes object that is passed on as it stands; the API server checks it."""
Switch = Literal["Enabled", "Disabled"]
MOST_BYTES: Final = 2**50
"""1Pi: no machine has as much, and a double still counts single bytes of it."""


class Resource(BaseModel):
    """A part of the manifest: frozen, camelCase, unknown fields and wrong types refused.

    A field that is null counts as absent, as it does to the API server: `engine:` with nothing under it.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_name=False
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if item is not None}

    def chosen(self, *alternatives: str) -> list[str]:
        """Which of the fields are set, by their names in the manifest."""
        return [_manifest_name(type(self), name) for name in alternatives if getattr(self, name) is not None]

    def differs(self, field: str) -> bool:
        """Whether the field has another value than its default."""
        return bool(getattr(self, field) != type(self).model_fields[field].default)

    def require_one(self, *alternatives: str) -> None:
        """Hold a union to its rule.

        Raises:
            ValueError: none or several of the fields are set.
        """
        chosen = self.chosen(*alternatives)
        if len(chosen) != 1:
            given = " and ".join(chosen) if chosen else "none"
            names = ", ".join(_manifest_name(type(self), name) for name in alternatives)
            raise ValueError(f"give exactly one of {names}; given: {given}")


def require_distinct(names: Iterable[str], field: str) -> None:
    """Hold a list to its rule.

    Raises:
        ValueError: a name stands twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{field} holds {name!r} twice")
        seen.add(name)


def _manifest_name(resource: type[Resource], field: str) -> str:
    return resource.model_fields[field].alias or field


class SecretKeyReference(Resource):
    """One key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(
        min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Key inside the Secret."
    )


class NameReference(Resource):
    """An object in the same namespace."""

    name: ObjectName = Field(description="Name of the object.")
