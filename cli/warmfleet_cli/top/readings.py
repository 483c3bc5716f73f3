"""What the routers of a fleet report: their totals, and which replica serves which model under which name."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.router_client import get_body, get_json
from warmfleet_contracts.cache.fleet_totals import (
    FLEET_TOTALS_PATH,
    MAX_TOTALS_BYTES,
    FleetTotals,
    decode_totals,
)
from warmfleet_contracts.errors import ContractError

MOST_FLEET_BYTES: Final = 16 * 1024 * 1024
"""A router names up to 4,096 replicas, each with some 1 KiB."""


class EndpointView(msgspec.Struct, frozen=True):
    """A replica in a router's `/internal/fleet`."""

    uid: str
    name: str
    served_names: tuple[str, ...] = ()


class _Fleet(msgspec.Struct, frozen=True):
    endpoints: tuple[EndpointView, ...] = ()
    asleep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """One round over all routers."""

    totals: tuple[FleetTotals, ...] = ()
    endpoints: tuple[EndpointView, ...] = ()
    """Of the first router that answers."""
    asleep: tuple[str, ...] = ()
    """Names of models without any replica that a request wakes, by the same router."""
    problems: tuple[str, ...] = ()
    """Of routers that did not answer."""


def read_routers(clients: Sequence[httpx.Client]) -> Readings:
    """Ask every router once.

    Raises:
        CliError: none of them answers, or one refuses the key.
    """
    totals: list[FleetTotals] = []
    fleet: _Fleet | None = None
    errors: list[CliError] = []
    for client in clients:
        try:
            totals.append(_totals(client))
            fleet = fleet or _fleet(client)
        except CliError as error:
            if error.exit_code is ExitCode.REFUSED:
                raise
            errors.append(error)
    if errors and not totals:
        raise errors[0]
    known = fleet or _Fleet()
    served = {name for endpoint in known.endpoints for name in endpoint.served_names}
    return Readings(
        tuple(totals),
        known.endpoints,
        asleep=tuple(name for name in known.asleep if name not in served),
        problems=tuple(str(error) for error in errors),
    )


def _totals(client: httpx.Client) -> FleetTotals:
    try:
        return decode_totals(get_body(client, FLEET_TOTALS_PATH, most_bytes=MAX_TOTALS_BYTES))
    except ContractError as error:
        raise CliError(f"{client.base_url}: {error}", exit_code=ExitCode.REFUSED) from error


def _fleet(client: httpx.Client) -> _Fleet | None:
    with contextlib.suppress(msgspec.ValidationError):
        fleet: _Fleet = get_json(client, "/internal/fleet", kind=_Fleet, most_bytes=MOST_FLEET_BYTES)
        return fleet
    return None
