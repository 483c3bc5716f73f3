"""The troubleshooting page has a section for every reason that the operator reports."""

from collections import Counter

import pytest

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_testing.documents.troubleshooting_page import commands, sections

HEADINGS = Counter(part for heading in sections() for part in heading.split(", "))


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_section(reason: Reason) -> None:
    assert HEADINGS[reason.value] == 1


def test_every_section_with_a_reasons_name_is_one() -> None:
    names = {heading for heading in HEADINGS if heading.isidentifier()}

    assert names <= {reason.value for reason in Reason}


def test_commands_are_kubectls() -> None:
    assert len(commands()) > 20
    assert all(line.startswith("kubectl ") for _, line in commands())
