"""Reads a ModelDeployment from YAML. Every error names the file, the field, and the expected value."""

import difflib
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import API_VERSION, KIND
from warmfleet_contracts.plain_yaml import read_documents
from warmfleet_contracts.resources.fields import LOCAL_CONTEXT
from warmfleet_contracts.resources.model_deployment import ModelDeployment

MAX_MANIFEST_BYTES: Final = 256 * 1024
_MAX_PROBLEMS: Final = 20


def load_manifest(source: Path | str, *, local: bool = False) -> ModelDeployment:
    """The one ModelDeployment in a file (`Path`) or a text (`str`).

        deployment = load_manifest(Path("examples/minimal.yaml"))
        deployment.served_names  # ("minimal",)
        deployment.spec.kv_cache.size_bytes  # 268435456

    Args:
        source: the file, or the YAML itself.
        local: reading for `warmfleet up`, which accepts `spec.model.source.localPath`.

    Raises:
        ManifestError: unreadable, too large, not one ModelDeployment, or a field is wrong; the text begins
            with the file's name and names the field.
    """
    origin = str(source) if isinstance(source, Path) else "manifest"
    text = _read(source, origin) if isinstance(source, Path) else source
    if len(text.encode()) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{origin}: larger than {MAX_MANIFEST_BYTES // 1024} KiB")
    return parse_manifest(_only_document(text, origin), origin=origin, local=local)


def parse_manifest(
    document: object, *, origin: str, local: bool = False, ignore_unknown: bool = False
) -> ModelDeployment:
    """A ModelDeployment from plain data (a parsed file, or an object of the API server).

    Args:
        document: the plain data.
        origin: how errors name it.
        local: as for `load_manifest`.
        ignore_unknown: leave out fields that this version does not know, as for objects of the API server,
            which were checked against a definition that may be newer. A file is checked here only.

    Raises:
        ManifestError: not a ModelDeployment, or a field is wrong.
    """
    if not isinstance(document, dict):
        raise ManifestError(f"{origin}: holds no object; expected a {KIND}")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != KIND:
        raise ManifestError(f"{origin}: kind: is {reprlib.repr(kind)}; expected {KIND}")
    if version != API_VERSION:
        raise ManifestError(f"{origin}: apiVersion: is {reprlib.repr(version)}; expected {API_VERSION}")
    try:
        extra: Literal["ignore", "forbid"] = "ignore" if ignore_unknown else "forbid"
        return ModelDeployment.model_validate(document, context={LOCAL_CONTEXT: local}, extra=extra)
    except ValidationError as error:
        problems = [
            f"{_field_path(detail['loc'])}: {_explain(detail)}"
            for detail in error.errors(include_url=False)[:_MAX_PROBLEMS]
        ]
        if len(problems) == 1:
            raise ManifestError(f"{origin}: {problems[0]}") from None
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ManifestError(f"{origin}: {error.error_count()} problems:{listed}") from None


def _read(path: Path, origin: str) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1).decode()
    except OSError as error:
        raise ManifestError(f"{origin}: {(error.strerror or 'cannot be read').lower()}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{origin}: is not UTF-8 text") from error


def _only_document(text: str, origin: str) -> object:
    try:
        documents = [document for document in read_documents(text) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ManifestError(f"{origin}{place}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"{origin}: not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ManifestError(f"{origin}: nested too deeply") from error
    if len(documents) != 1:
        found = f"{len(documents)} documents" if documents else "no document"
        raise ManifestError(f"{origin}: {found}; expected exactly one {KIND}")
    return documents[0]


def _field_path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".") or KIND


def _explain(detail: ErrorDetails) -> str:
    given = f"is {reprlib.repr(detail['input'])}"
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden":
            text = f"unknown field{_suggestion(str(detail['loc'][-1]))}"
        case "literal_error":
            text = f"{given}; allowed: {str(context['expected']).replace(' or ', ', ').replace(chr(39), '')}"
        case "value_error":
            text = str(context["error"])
        case "model_type" | "dict_type":
            text = f"{given}; expected an object"
        case "string_pattern_mismatch":
            text = f"{given}; must match {context['pattern']}"
        case _:
            text = f"{given}; {detail['msg'].removeprefix('Input ')}"
    return text


def _suggestion(name: str) -> str:
    known = set(_field_names(ModelDeployment.model_json_schema())) - {name}
    close = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _field_names(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for part in schema.values():
            yield from _field_names(part)
