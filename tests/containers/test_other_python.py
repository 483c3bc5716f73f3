"""Images on a base with another Python: built and run, or refused by name."""

import pytest

from warmfleet_testing.containers.builder import BuildFailedError, reference

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

DEBIAN_13 = "docker.io/library/python:3.13-slim-trixie"
DEBIAN_11 = "docker.io/library/python:3.9-slim-bullseye"
TAG = "other-python"


def test_operator_and_router_are_built_and_start_on_a_newer_python(store):
    store.make_base(DEBIAN_13, debian="trixie")
    store.build("operator", "router", base=DEBIAN_13, tag=TAG)
    for target in ("operator", "router"):
        image = reference(target, TAG)
        script = "import sys, kubernetes; print(*sys.version_info[:2], kubernetes.__spec__.cached[-15:])"
        assert store.run(image, "python", "-c", script) == "3 13 cpython-313.pyc\n"
        shown = store.run(image, "python", "-m", f"warmfleet_{target}", "--help")
        assert shown.startswith(f"usage: python -m warmfleet_{target}")


def test_a_base_with_an_older_python_is_refused_by_its_version(store):
    store.make_base(DEBIAN_11, debian="bullseye")
    with pytest.raises(BuildFailedError, match=r"PYTHON_IMAGE: Python 3\.11 or newer is needed.*3\.9"):
        store.build("router", base=DEBIAN_11, tag=TAG)
