"""The hostile requests, by class of advisory: see the modules for what each class is.

A values that ended engines, B sizes, C grammars, D templates, F keys and framing, G addresses to fetch. What
takes several requests at once, classes I and J, stands in `hostile_crowds`.
"""

from functools import cache
from typing import Final

from warmfleet_testing.hostile.heads import head_attacks
from warmfleet_testing.hostile.request import HostileRequest
from warmfleet_testing.hostile.sizes import size_attacks
from warmfleet_testing.hostile.values import grammar_attacks, value_attacks
from warmfleet_testing.hostile.words import fetch_attacks, template_attacks

CLASSES: Final = "ABCDFG"


@cache
def hostile_requests(advisory: str, *, wrong_key: str, others_key: str) -> list[HostileRequest]:
    """All of one class; the keys are for those that send a wrong one."""
    match advisory:
        case "A":
            return value_attacks()
        case "B":
            return size_attacks()
        case "C":
            return grammar_attacks()
        case "D":
            return template_attacks()
        case "F":
            return head_attacks(wrong_key, others_key)
        case "G":
            return fetch_attacks()
    raise KeyError(advisory)
