"""The version of the installed warmfleet."""

from functools import cache


@cache
def package_version() -> str:
    """The distribution's version, such as "0.9.0"; "0+unknown" when a source tree runs uninstalled."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 10 ms, once

    try:
        return version("warmfleet")
    except PackageNotFoundError:
        return "0+unknown"
