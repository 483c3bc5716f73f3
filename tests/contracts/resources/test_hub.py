"""The hub's questions and answers, and a source that is pinned to the commit of its branch."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.errors import ManifestError, ModelError
from warmfleet_contracts.resources.hub import commit_in, is_commit, pause_seconds, revision_path
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_fetch import at_commit, fetch_flags, fetch_key, model_folder
from warmfleet_contracts.resources.model_spec import ModelSource
from warmfleet_testing.resources.crd_schema import spec_fields

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = COMMIT[::-1]
REVISIONS = ("main", "v1.0", "v1.0-rc+1", "refs/pr/3", "feature/a_b", "_x", "0123456", COMMIT, "A" * 255)
NO_REVISIONS = (
    *("", "../x", "a/../b", "a..b", "a//b", "/a", "a/", "a.", ".a", "-a", "a b", "a?b", "a#b", "a%2fb"),
    *("a\\b", "a\n", "a:b", "@", "ä", "A" * 256),
)


def source(**hub: object) -> ModelSource:
    spec = parse_manifest(
        {
            "apiVersion": "warmfleet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "m"},
            "spec": {
                "model": {"source": {"huggingFace": {"repository": "acme/tiny", **hub}}},
                "kvCache": {"size": "64Mi"},
            },
        },
        origin="test",
    ).spec
    return spec.model.source


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_branch_a_tag_or_a_commit_is_a_revision(revision: str) -> None:
    hub = source(revision=revision).hugging_face

    assert hub is not None
    assert hub.asked_revision == revision


@pytest.mark.parametrize("revision", NO_REVISIONS)
def test_what_no_hub_could_have_is_refused(revision: str) -> None:
    with pytest.raises(ManifestError, match="revision"):
        source(revision=revision)


def test_without_a_revision_the_branch_main_is_meant() -> None:
    hub = source().hugging_face

    assert hub is not None
    assert hub.asked_revision == "main"


@given(st.from_regex(r"^[A-Za-z0-9_][A-Za-z0-9_+-]*([./][A-Za-z0-9_+-]+)*\Z", fullmatch=True))
def test_a_revision_stays_one_segment_of_the_path(revision: str) -> None:
    (pattern,) = [
        field.schema["pattern"]
        for field in spec_fields()
        if field.path == "spec.model.source.huggingFace.revision"
    ]
    path = revision_path("acme/tiny", revision)

    assert re.fullmatch(pattern, revision)
    assert re.fullmatch(r"/api/models/acme/tiny/revision/[A-Za-z0-9._~%+-]+", path)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"<html>", "does not answer like a Hugging Face hub"),
        (b"{}", "does not answer like a Hugging Face hub"),
        (b'{"sha": "main"}', "does not answer like a Hugging Face hub"),
        (b'{"sha": "%s\\n"}' % COMMIT.encode(), "does not answer like a Hugging Face hub"),
        (b'{"sha": null}', "does not answer like a Hugging Face hub"),
        (b"[" * 100_000, "does not answer like a Hugging Face hub"),
        (b"\xff", "does not answer like a Hugging Face hub"),
    ],
)
def test_an_answer_without_a_commit_is_none(body: bytes, error: str) -> None:
    with pytest.raises(ModelError, match=error):
        commit_in(body, "https://hub.example.com")


def test_a_commit_is_found_among_all_that_the_hub_tells() -> None:
    assert commit_in(b'{"siblings": [{"rfilename": "a"}], "sha": "%s"}' % COMMIT.encode(), "") == COMMIT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("", 0.0), ("7", 7.0), ("999999", 60.0), ("-1", 0.0), ("Wed, 21 Oct 2026", 0.0), ("٣", 0.0)],
)
def test_a_pause_is_bounded(header: str, seconds: float) -> None:
    assert pause_seconds(header) == seconds


@pytest.mark.parametrize("written", [{}, {"revision": "main"}, {"revision": "v2"}])
def test_a_branch_at_its_commit_is_the_commit(written: dict[str, str]) -> None:
    """Folder, Job and flags are those of a source that names the commit, so to write it changes nothing."""
    pinned = source(revision=COMMIT)
    resolved = at_commit(source(**written), COMMIT)

    assert model_folder(resolved) == model_folder(pinned)
    assert fetch_key(resolved) == fetch_key(pinned)
    assert fetch_flags(resolved) == fetch_flags(pinned)
    assert model_folder(at_commit(source(**written), OTHER)) != model_folder(pinned)


def test_a_branch_is_not_fetched_before_it_is_resolved() -> None:
    with pytest.raises(ModelError, match="acme/tiny@main is not resolved"):
        fetch_flags(source())


def test_a_commit_has_forty_lower_case_digits() -> None:
    assert is_commit(COMMIT)
    assert not any(is_commit(text) for text in ("", "main", COMMIT[:39], COMMIT + "0", COMMIT.upper()))
