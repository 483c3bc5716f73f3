"""`warmfleet keys`: create, list and revoke the API keys that routers require."""

import datetime as dt
import re
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args

import msgspec
import typer
import yaml

from warmfleet_cli.errors import EXIT_CODES_HELP, CliError, ExitCode
from warmfleet_cli.key_file import edited_keys, load_keys
from warmfleet_cli.output import make_console, print_json, print_table
from warmfleet_contracts.keys import (
    KeyEntry,
    KeyFile,
    Scope,
    TenantEntry,
    digest_of_key,
    encode_key_file,
    is_expired,
    new_key,
)
from warmfleet_contracts.names import KEYS_FILE_VARIABLE

SECRET_FILE: Final = "keys.json"  # noqa: S105 - the name of a file
"""Key of the file in a Kubernetes Secret."""
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_SCOPES: Final = get_args(Scope)

keys_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the API keys of a fleet.")


def _epilog(example: str) -> str:
    return f"Example: warmfleet keys {example}\n\n{EXIT_CODES_HELP}"


class KeysOutput(StrEnum):
    """Values of `--output` for the commands of `warmfleet keys`."""

    TEXT = "text"
    JSON = "json"
    SECRET = "secret"  # noqa: S105 - a kind of Kubernetes object


KeysFile = Annotated[
    Path,
    typer.Option(
        "--keys-file", envvar=KEYS_FILE_VARIABLE, show_envvar=True, help="File of hashed keys, JSON or YAML."
    ),
]
Output = Annotated[
    KeysOutput,
    typer.Option(
        "--output", "-o", help="text for people, json for programs, secret: the file as a Kubernetes Secret."
    ),
]
SecretName = Annotated[str, typer.Option(help="Name of the Kubernetes Secret.")]
Namespace = Annotated[str | None, typer.Option(help="Namespace of the Kubernetes Secret.")]


@keys_app.command(
    epilog=f"Example: warmfleet keys create --keys-file keys.json --tenant acme\n\n{EXIT_CODES_HELP}"
)
def create(
    *,
    keys_file: KeysFile,
    tenant: Annotated[str, typer.Option(help="Tenant that the key belongs to.")],
    models: Annotated[
        list[str] | None, typer.Option("--models", help="Served name it may call (repeatable). Default: all.")
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scopes", help="inference, metrics or admin (repeatable). Default: inference."),
    ] = None,
    priority: Annotated[
        int, typer.Option(help="Most urgent priority that its requests may use; lower is more urgent.")
    ] = 0,
    expires: Annotated[
        str | None, typer.Option(help="Expiry: 90d, 12h, 30m, or a date such as 2027-01-31. Default: never.")
    ] = None,
    sharing_group: Annotated[
        str | None, typer.Option(help="Group of tenants that share cached prefixes. Set on the tenant.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Fair-share weight when the fleet is full. Set on the tenant.")
    ] = None,
    max_in_flight_requests: Annotated[
        int | None, typer.Option(help="Maximum requests in flight. Set on the tenant.")
    ] = None,
    max_in_flight_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens in flight. Set on the tenant.")
    ] = None,
    output: Output = KeysOutput.TEXT,
    secret_name: SecretName = "warmfleet-keys",  # noqa: S107 - the name of an object
    namespace: Namespace = None,
) -> None:
    """Create a key, add its hash to the file, and print the key: only now, because it is not stored."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    of_tenant: dict[str, Any] = {
        "sharing_group": sharing_group,
        "weight": weight,
        "max_in_flight_requests": max_in_flight_requests,
        "max_in_flight_tokens": max_in_flight_tokens,
    }
    had_file = keys_file.exists()
    with edited_keys(keys_file) as edit:
        key = new_key([entry.id for entry in edit.keys.keys])
        entry = KeyEntry(
            id=key.id,
            tenant=tenant,
            sha256=digest_of_key(key.text),
            models=tuple(_split("--models", models)) or None,
            scopes=_scopes(_split("--scopes", scopes)),
            best_priority=priority,
            created=now,
            expires=_moment(expires, now) if expires else None,
        )
        given = {name: value for name, value in of_tenant.items() if value is not None}
        known = edit.keys.tenant(tenant)
        wanted = (
            msgspec.structs.replace(known, **given)
            if known is not None
            else TenantEntry(name=tenant, **given)
        )
        edit.keys = edit.keys.with_key(entry, wanted)
        keys = edit.keys
    _print_key(key.text, entry, keys, keys_file, output, secret_name=secret_name, namespace=namespace)
    if output is KeysOutput.SECRET and not had_file:
        make_console(stderr=True).print(
            f"{keys_file} did not exist, so the Secret holds this key alone: "
            "applied to a cluster that has keys, it revokes them"
        )


@keys_app.command("list", epilog=_epilog("list --keys-file keys.json"))
def list_keys(
    *,
    keys_file: KeysFile,
    output: Output = KeysOutput.TEXT,
    secret_name: SecretName = "warmfleet-keys",  # noqa: S107 - the name of an object
    namespace: Namespace = None,
) -> None:
    """List the keys in the file: ids, tenants, scopes and limits. The keys themselves are not stored."""
    keys = load_keys(keys_file)
    match output:
        case KeysOutput.JSON:
            print_json({"keys": [_record(entry, keys) for entry in keys.keys]})
        case KeysOutput.SECRET:
            typer.echo(secret_manifest(keys, name=secret_name, namespace=namespace), nl=False)
        case KeysOutput.TEXT:
            columns = ["ID", "TENANT", "SCOPES", "MODELS", ">WEIGHT", ">REQUESTS", ">TOKENS", ">PRIORITY"]
            print_table(
                make_console(), [*columns, "GROUP", "EXPIRES"], [_row(entry, keys) for entry in keys.keys]
            )


@keys_app.command(
    epilog=f"Example: warmfleet keys revoke 7k2m9qxw4r --keys-file keys.json\n\n{EXIT_CODES_HELP}"
)
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, as `warmfleet keys list` shows it.")
    ],
    *,
    keys_file: KeysFile,
    output: Output = KeysOutput.TEXT,
    secret_name: SecretName = "warmfleet-keys",  # noqa: S107 - the name of an object
    namespace: Namespace = None,
) -> None:
    """Remove a key from the file; routers refuse it within seconds. Its running requests finish."""
    if not keys_file.exists():
        raise CliError(f"{keys_file} does not exist")
    if key_id.startswith("wf-"):
        raise CliError(
            "this is a whole key, not its id",
            advice="the id stands between the first two hyphens",
            exit_code=ExitCode.USAGE,
        )
    with edited_keys(keys_file) as edit:
        edit.keys = edit.keys.without_key(key_id)
        keys = edit.keys
    match output:
        case KeysOutput.JSON:
            print_json({"revoked": key_id})
        case KeysOutput.SECRET:
            typer.echo(secret_manifest(keys, name=secret_name, namespace=namespace), nl=False)
        case KeysOutput.TEXT:
            make_console().print(f"{key_id} is revoked")


def secret_manifest(keys: KeyFile, *, name: str, namespace: str | None) -> str:
    """A Kubernetes Secret with the hashed file, as YAML."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
    }
    content = textwrap.indent(encode_key_file(keys).decode(), "    ")
    return f"{yaml.safe_dump(manifest, sort_keys=False)}stringData:\n  {SECRET_FILE}: |\n{content}"


def _print_key(
    text: str,
    entry: KeyEntry,
    keys: KeyFile,
    keys_file: Path,
    output: KeysOutput,
    *,
    secret_name: str,
    namespace: str | None,
) -> None:
    match output:
        case KeysOutput.JSON:
            print_json({"key": text, **_record(entry, keys)})
        case KeysOutput.SECRET:
            # stdout goes to `kubectl apply -f -`, so the key itself goes to stderr.
            make_console(stderr=True).print(f"key {text}  (shown this once)")
            typer.echo(secret_manifest(keys, name=secret_name, namespace=namespace), nl=False)
        case KeysOutput.TEXT:
            console = make_console()
            console.print(f"key     {text}")
            console.print(f"id      {entry.id}")
            console.print(f"tenant  {entry.tenant}")
            console.print(f"The key is shown this once; {keys_file} holds its hash.")


def _record(entry: KeyEntry, keys: KeyFile) -> dict[str, Any]:
    tenant = keys.tenant(entry.tenant)
    record: dict[str, Any] = msgspec.to_builtins(entry)
    del record["sha256"]
    return {**record, "expired": is_expired(entry), "tenantSettings": msgspec.to_builtins(tenant)}


def _row(entry: KeyEntry, keys: KeyFile) -> list[str]:
    tenant = keys.tenant(entry.tenant)
    assert tenant is not None, "a key file is consistent"
    ends = "never" if entry.expires is None else f"{entry.expires:%Y-%m-%d %H:%M}Z"
    return [
        entry.id,
        entry.tenant,
        ",".join(entry.scopes),
        "all" if entry.models is None else ",".join(entry.models),
        f"{tenant.weight:g}",
        str(tenant.max_in_flight_requests or "-"),
        str(tenant.max_in_flight_tokens or "-"),
        str(entry.best_priority),
        tenant.sharing_group or "-",
        "expired" if is_expired(entry) else ends,
    ]


def _split(flag: str, values: list[str] | None) -> list[str]:
    """The values of an option that may be repeated or hold commas."""
    parts = [part for value in values or [] for part in value.split(",") if part]
    if values and not parts:  # an empty variable in a script must not open everything
        raise _usage(f"{flag}: is empty")
    return parts


def _scopes(names: list[str]) -> tuple[Scope, ...]:
    for name in names:
        if name not in _SCOPES:
            raise _usage(f"--scopes: is {name!r}; allowed: {', '.join(_SCOPES)}")
    return cast("tuple[Scope, ...]", tuple(dict.fromkeys(names)) or ("inference",))


def _moment(text: str, now: dt.datetime) -> dt.datetime:
    duration = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    try:
        if duration is not None:
            return now + dt.timedelta(seconds=int(duration[1]) * _UNITS[duration[2]])
        moment = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise _usage(f"--expires: is {text!r}; expected 90d, 12h, 30m or a date such as 2027-01-31") from None
    moment = moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    if moment <= now:
        raise _usage(f"--expires: {text!r} is not in the future")
    return moment


def _usage(text: str) -> CliError:
    return CliError(text, exit_code=ExitCode.USAGE)
