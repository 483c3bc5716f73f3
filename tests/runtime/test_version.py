"""One version for every component: the distribution's."""

import importlib.metadata

from warmfleet_runtime.version import package_version


def test_the_version_is_that_of_the_installed_distribution():
    assert package_version() == importlib.metadata.version("warmfleet")
    assert package_version()[0].isdigit()


def test_a_source_tree_that_is_not_installed_has_a_version_too(monkeypatch):
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    assert package_version.__wrapped__() == "0+unknown"
