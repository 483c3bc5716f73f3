"""The names by which requests reach a deployment: those that it claims and that no other owns."""

from warmfleet_contracts.resources.ownership import owners
from warmfleet_operator.objects.served_names import claim_of, name_of_another, request_names
from warmfleet_testing.resources.observations import deployment


def claiming(name: str, created: str, *served: str):
    """A deployment that was made with these served names."""
    made = deployment(name, model={"servedNames": list(served), "source": {}})
    made["metadata"] |= {"creationTimestamp": created, "generation": 1}
    return made


OLDER = claiming("older", "2026-01-01T00:00:00Z", "chat", "small")
YOUNGER = claiming("younger", "2026-01-02T00:00:00Z", "chat", "large", "models/older")
OWNERS = owners([claim_of(OLDER), claim_of(YOUNGER)])


def test_requests_reach_a_deployment_by_the_names_that_it_owns():
    assert request_names(OLDER, OWNERS) == ["chat", "small", "models/older"]
    assert request_names(YOUNGER, OWNERS) == ["large", "models/younger"]


def test_the_first_name_that_another_deployment_owns_is_named_with_it():
    assert name_of_another(OLDER, OWNERS) == (None, "")
    assert name_of_another(YOUNGER, OWNERS) == (claim_of(OLDER), "chat")
