"""API keys and the hashed file that holds them: read by the router, edited by `warmfleet keys`.

A key is `wf-<id>-<64 hex digits>`. The id is public and finds the entry; the file keeps the SHA-256 of the
whole key and nothing else of it. A plain hash is enough: 256 random bits cannot be searched, and a slow hash
would cost every request what it costs an attacker.

What belongs to a tenant stands once, so several keys of one tenant cannot contradict each other: sharing
group, weight, limits. What belongs to a key stands with the key: models, scopes, best priority, expiry.
"""

import datetime as dt
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import KeyFileError
from warmfleet_contracts.names import MAX_MODEL_NAME_CHARS
from warmfleet_contracts.plain_yaml import read_document

KEY_FILE_VERSION: Final = 1
MAX_KEY_FILE_BYTES: Final = 1024 * 1024
"""As much as fits a Kubernetes Secret."""
MAX_YAML_BYTES: Final = 256 * 1024
"""YAML is slow to read: about 900 keys in this much take a second."""
MAX_KEYS: Final = 2048
MAX_KEY_LENGTH: Final = 128
"""A longer bearer token is not one of ours."""

ANONYMOUS_NAME: Final = "anonymous"
"""What logs and metrics of a router without keys call its clients."""
OPERATOR_NAME: Final = "operator"
"""What they call the operator, which has a token and no key."""
RESERVED_NAMES: Final = frozenset({ANONYMOUS_NAME, OPERATOR_NAME})
"""No tenant has them: its requests would be taken for those of the others."""

Scope = Literal["inference", "metrics", "admin"]

_SECRET: Final = re.compile(r"wf-([a-z0-9]{10})-[0-9a-f]{64}")
_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without the characters that are easily misread."""
_NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"

_NAME_FORM: Final = (
    "1 to 63 letters, digits, dots, dashes and underscores, with a letter or digit at both ends"
)
_FORMS: Final = {
    "name": _NAME_FORM,
    "tenant": _NAME_FORM,
    "sharingGroup": _NAME_FORM,
    "id": "10 small letters and digits",
    "sha256": "64 hexadecimal digits in small letters",
}
"""Field -> its pattern in words."""

Name = Annotated[str, msgspec.Meta(pattern=_NAME_PATTERN)]
ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL_NAME_CHARS)]
Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Settings that all keys of one tenant share."""

    name: Name
    sharing_group: Name | None = None
    """Tenants of one group read each other's cache; without one, the tenant reads its own only."""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    """Share of a full fleet, relative to other tenants."""
    max_in_flight_requests: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    max_in_flight_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One key; holds no secret."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]{10}\Z")]
    tenant: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")] = msgspec.field(name="sha256")
    """Hex of the SHA-256 of the whole key."""
    models: Annotated[tuple[ModelName, ...], msgspec.Meta(max_length=256)] | None = None
    """Served names that may be called; absent means all."""
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=3)] = ("inference",)
    best_priority: Priority = 0
    """The lowest, which is the most urgent, number that a request may ask for."""
    created: dt.datetime
    expires: dt.datetime | None = None

    @property
    def expires_unix_seconds(self) -> float:
        """Infinite for a key without an end."""
        return self.expires.timestamp() if self.expires is not None else float("inf")


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All keys of a fleet. `parse_key_file` makes it, and only consistent ones."""

    version: int = KEY_FILE_VERSION
    tenants: tuple[TenantEntry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()

    def tenant(self, name: str) -> TenantEntry | None:
        return next((tenant for tenant in self.tenants if tenant.name == name), None)

    def with_key(self, entry: KeyEntry, tenant: TenantEntry) -> "KeyFile":
        """This file and one key more, of a tenant that is new or stands in the file just so.

        Raises:
            KeyFileError: the tenant stands there with other values, a value is wrong, or the file is full.
        """
        known = self.tenant(tenant.name)
        if known is not None and known != tenant:
            different = [
                f"{_camel(field)} is {_shown(getattr(known, field))}, not {_shown(getattr(tenant, field))}"
                for field in TenantEntry.__struct_fields__
                if getattr(known, field) != getattr(tenant, field)
            ]
            raise KeyFileError(f"tenant {tenant.name!r} is in the file already: {'; '.join(different)}")
        tenants = self.tenants if known is not None else (*self.tenants, tenant)
        return _converted(msgspec.to_builtins(KeyFile(tenants=tenants, keys=(*self.keys, entry))))

    def without_key(self, key_id: str) -> "KeyFile":
        """This file without one key; its tenant stays.

        Raises:
            KeyFileError: there is no such key.
        """
        kept = tuple(entry for entry in self.keys if entry.id != key_id)
        if len(kept) == len(self.keys):
            known = ", ".join(entry.id for entry in self.keys[:16]) or "none"
            raise KeyFileError(f"no key has the id {key_id[:80]!r}; ids in the file: {known}")
        return KeyFile(tenants=self.tenants, keys=kept)


class NewKey(msgspec.Struct, frozen=True):
    """A key when it is made; later only its hash is known."""

    id: str
    text: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r})"


class KeyRing:
    """The keys of one file, indexed for a lookup on every request."""

    def __init__(self, file: KeyFile) -> None:
        self._entries = {entry.id: (bytes.fromhex(entry.sha256), entry) for entry in file.keys}
        self._no_digest = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, presented: str) -> KeyEntry | None:
        """The entry of a presented key, expired or not; None if it is none of these keys.

        One SHA-256 and one comparison in constant time, for a valid key and for any other text.
        """
        text = presented if len(presented) <= MAX_KEY_LENGTH else ""
        match = _SECRET.fullmatch(text)
        digest, entry = self._entries.get(match[1] if match else "", (self._no_digest, None))
        is_right = hmac.compare_digest(hashlib.sha256(text.encode("utf-8", "replace")).digest(), digest)
        return entry if is_right else None


def new_key(taken: Sequence[str] = ()) -> NewKey:
    """A fresh key whose id is none of `taken`."""
    while True:
        key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(10))
        if key_id not in taken:
            return NewKey(key_id, f"wf-{key_id}-{secrets.token_hex(32)}")


def digest_of_key(text: str) -> str:
    """What the file keeps of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_expired(entry: KeyEntry, now_unix_seconds: float | None = None) -> bool:
    """Whether the key has expired."""
    return entry.expires_unix_seconds <= (time.time() if now_unix_seconds is None else now_unix_seconds)


def parse_key_file(content: bytes) -> KeyFile:
    """The keys in a JSON or YAML file.

    Raises:
        KeyFileError: too large, neither JSON nor YAML, of another version, or a field is wrong. The text
            names the field and repeats no value that might be a secret.
    """
    if len(content) > MAX_KEY_FILE_BYTES:
        raise KeyFileError(f"larger than {MAX_KEY_FILE_BYTES} bytes")
    document = _document(content)
    if not isinstance(document, Mapping):
        raise KeyFileError("expected an object with version, tenants and keys")
    version = document.get("version")
    if version != KEY_FILE_VERSION or isinstance(version, bool):
        raise KeyFileError(f"version: expected {KEY_FILE_VERSION}")
    for field in ("tenants", "keys"):
        entries = document.get(field, [])
        if isinstance(entries, list) and len(entries) > MAX_KEYS:
            raise KeyFileError(f"{field}: {len(entries)} entries exceed the limit of {MAX_KEYS}")
    return _converted(document)


def encode_key_file(file: KeyFile, *, as_yaml: bool = False) -> bytes:
    """The file's content, for people to read; `parse_key_file` reads it back."""
    document = _without_defaults(msgspec.to_builtins(file))
    if as_yaml:
        return yaml.safe_dump(document, sort_keys=False).encode()
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _document(content: bytes) -> object:
    if content.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(content)
        except UNDECODABLE:
            raise KeyFileError("not valid JSON") from None
    if len(content) > MAX_YAML_BYTES:
        raise KeyFileError(f"larger than {MAX_YAML_BYTES} bytes of YAML; JSON may have {MAX_KEY_FILE_BYTES}")
    try:
        return read_document(content)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise KeyFileError(f"not valid YAML{line}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise KeyFileError("neither JSON nor YAML") from None


def _converted(document: object) -> KeyFile:
    try:
        file = msgspec.convert(document, KeyFile)
    except msgspec.ValidationError as error:
        raise KeyFileError(_explained(str(error))) from None
    return _consistent(file)


def _consistent(file: KeyFile) -> KeyFile:
    tenants: set[str] = set()
    for index, tenant in enumerate(file.tenants):
        if tenant.name in tenants:
            raise KeyFileError(f"tenants[{index}].name: tenant {tenant.name!r} stands twice")
        if tenant.name in RESERVED_NAMES:
            problem = f"{tenant.name!r} is a name that routers use themselves; rename the tenant"
            raise KeyFileError(f"tenants[{index}].name: {problem}")
        tenants.add(tenant.name)
    ids: set[str] = set()
    for index, entry in enumerate(file.keys):
        if entry.id in ids:
            raise KeyFileError(f"keys[{index}].id: key {entry.id!r} stands twice")
        if entry.tenant not in tenants:
            raise KeyFileError(f"keys[{index}].tenant: {entry.tenant!r} is not among the tenants")
        for field in ("created", "expires"):
            moment = getattr(entry, field)
            if moment is not None and moment.tzinfo is None:
                raise KeyFileError(f"keys[{index}].{field}: the time zone is missing")
        ids.add(entry.id)
    if len(file.keys) > MAX_KEYS:
        raise KeyFileError(f"keys: {len(file.keys)} entries exceed the limit of {MAX_KEYS}")
    return file


def _explained(text: str) -> str:
    """Msgspec's message with the field first; it quotes the value only of an enumeration, which is cut."""
    problem, _, place = text.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if problem.startswith("Invalid enum value"):
        problem = "not one of the allowed values"
    elif "matching regex" in problem:
        problem = f"expected {_FORMS[field.rpartition('.')[2]]}"
    return f"{field}: {problem}" if field else problem


def _without_defaults(document: dict[str, Any]) -> dict[str, Any]:
    return {
        **document,
        "tenants": [_given(entry) for entry in document["tenants"]],
        "keys": [_given(entry) for entry in document["keys"]],
    }


def _given(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


def _camel(field: str) -> str:
    head, *tail = field.split("_")
    return head + "".join(part.title() for part in tail)


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)
