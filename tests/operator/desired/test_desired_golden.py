"""The objects of five deployments, whole: names, labels and selectors are API, and a change must be seen.

After a change that is meant: `python tests/operator/desired/test_desired_golden.py` writes the files anew.
"""

from pathlib import Path

import pytest
import yaml

from warmfleet_testing.resources.desired_specs import EXAMPLES, desired

GOLDEN = Path(__file__).parent / "golden"


class _Plain(yaml.SafeDumper):
    """Without anchors."""

    def ignore_aliases(self, _data):
        return True


def text(name):
    spec, settings = EXAMPLES[name]
    return yaml.dump_all(desired(spec, settings).values(), Dumper=_Plain, sort_keys=False, width=100)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_objects_are_those_of_the_golden_file(name):
    assert text(name) == (GOLDEN / f"{name}.yaml").read_text()


def test_every_golden_file_has_an_example():
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in EXAMPLES:
        (GOLDEN / f"{each}.yaml").write_text(text(each))
