"""Name ownership against a restatement that looks at each name alone."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.resources.ownership import (
    NOT_RECORDED,
    Claim,
    claimed_names,
    claimed_since,
    owned_names,
    owners,
)

NAMES = st.sampled_from(["chat", "code", "meta-llama/tiny", "team-a/m", "team-b/m"])
TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-10-01T00:00:00Z"])
CLAIMS = st.lists(
    st.builds(
        lambda served, **fields: Claim(**fields, served_names=tuple(served), since=tuple(served.values())),
        namespace=st.sampled_from(["team-a", "team-b"]),
        name=st.sampled_from(["m", "n", "o"]),
        uid=st.sampled_from([f"uid-{number}" for number in range(8)]),
        created=TIMES,
        served=st.dictionaries(NAMES, TIMES | st.just(NOT_RECORDED), max_size=3),
    ),
    max_size=6,
    unique_by=(lambda claim: claim.uid, lambda claim: claim.qualified_name),
)


def claim(name, **changes):
    fields = {"namespace": "default", "uid": f"uid-{name}", "created": "2026-01-01T00:00:00Z"}
    fields |= {"name": name, "served_names": (name,), **changes}
    return Claim(**{"since": (fields["created"],) * len(fields["served_names"]), **fields})


@given(CLAIMS)
def test_every_claimed_name_has_the_owner_that_a_look_at_it_alone_finds(claims):
    found = owners(claims)

    wanted = {name for claim in claims for name in (claim.qualified_name, *claim.served_names)}
    assert set(found) == wanted
    for name in wanted:
        own = [claim for claim in claims if claim.qualified_name == name]
        claimants = own or [claim for claim in claims if name in claim.served_names]
        since = {claim.uid: dict(zip(claim.served_names, claim.since, strict=True)) for claim in claims}
        assert found[name] == min(
            claimants,
            key=lambda claim: ("" if own else since[claim.uid][name], claim.created, claim.uid),
        )


@given(CLAIMS, st.integers(0), NAMES)
def test_a_name_is_not_lost_to_a_deployment_that_adds_it(claims, place, name):
    """The claims before are recorded; the addition is not, or it is later than all of them."""
    latest = "2026-11-01T00:00:00Z"
    claims = [replace(claim, since=tuple(min(time, latest) for time in claim.since)) for claim in claims]
    if not claims or name in claims[place % len(claims)].served_names:
        return
    before = owners(claims)
    greedy = claims[place % len(claims)]
    for since in ("2026-12-01T00:00:00Z", NOT_RECORDED):
        claims[place % len(claims)] = replace(
            greedy, served_names=(name, *greedy.served_names), since=(since, *greedy.since)
        )
        after = owners(claims)
        kept = {known: owner.uid for known, owner in before.items()}
        assert kept.items() <= {known: owner.uid for known, owner in after.items()}.items()


def test_a_name_is_as_old_as_a_resource_that_was_never_changed_or_as_its_record():
    def since(names, recorded, generation):
        return claimed_since(names, recorded, created="2026-01-01T00:00:00Z", generation=generation)

    assert since(["a"], {}, 1) == ("2026-01-01T00:00:00Z",)
    assert since(["a"], {}, 2) == (NOT_RECORDED,)
    assert since(["b", "a"], {"a": "2026-03-01T00:00:00Z"}, 2) == (NOT_RECORDED, "2026-03-01T00:00:00Z")
    assert since(["a"], {"a": "2026-03-01T00:00:00Z"}, 1) == ("2026-03-01T00:00:00Z",)


@given(CLAIMS, st.randoms(use_true_random=False))
def test_the_order_in_which_claims_are_seen_changes_nothing(claims, order: random.Random):
    shuffled = list(claims)
    order.shuffle(shuffled)

    assert owners(shuffled) == owners(claims)


@given(CLAIMS)
def test_every_name_is_listed_at_exactly_one_deployment(claims):
    owner = owners(claims)
    names = owned_names(owner)

    assert sorted(name for owned in names.values() for name in owned) == sorted(owner)
    assert all(owner[name].uid == uid for uid, owned in names.items() for name in owned)
    assert set(names) == {claim.uid for claim in claims}


def test_the_oldest_keeps_a_name_and_the_younger_gets_it_when_the_oldest_goes():
    older, younger = claim("b"), claim("a", created="2026-01-02T00:00:00Z", served_names=("b",))

    assert owners([younger, older])["b"] is older
    assert owners([younger])["b"] is younger


def test_of_two_made_within_the_same_second_the_lower_uid_decides():
    first, second = claim("x", uid="1", served_names=("n",)), claim("y", uid="2", served_names=("n",))

    assert owners([second, first])["n"] is first


@pytest.mark.parametrize("created", ["2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"])
def test_a_qualified_name_cannot_be_taken(created):
    victim = claim("chat", namespace="team-a")
    thief = claim("thief", served_names=("team-a/chat",), created=created)

    assert owners([thief, victim])["team-a/chat"] is victim
    assert owners([thief])["team-a/chat"] is thief


def test_a_deployment_that_lists_no_names_claims_its_own():
    assert claimed_names(None, "tiny") == claimed_names((), "tiny") == ("tiny",)
    assert claimed_names(["a", "b"], "tiny") == ("a", "b")
