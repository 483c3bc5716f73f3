"""Flags of the operator, and which values it refuses."""

import pytest

from warmfleet_operator.settings import OperatorSettings, parse_settings

IN_POD = {"WARMFLEET_POD_NAMESPACE": "warmfleet", "WARMFLEET_POD_NAME": "operator-0"}


def test_a_pod_needs_no_flags() -> None:
    settings = parse_settings([], IN_POD)

    assert settings.release_namespace == "warmfleet"
    assert settings.identity == "operator-0"
    assert settings.watched_namespaces == ()
    assert settings.root_secret_name == "warmfleet-root-keys"
    assert settings.router_url == "http://warmfleet-router.warmfleet.svc"


def test_names_follow_the_release() -> None:
    settings = parse_settings(["--release-name", "blue"], IN_POD)

    assert settings.root_secret_name == "blue-root-keys"
    assert settings.router_service_name == "blue-router"
    assert settings.lease.name == "blue-operator"
    assert settings.router_pod_labels == {
        "warmfleet.dev/component": "router",
        "app.kubernetes.io/instance": "blue",
    }


def test_defaults_of_flags_and_of_the_value_agree() -> None:
    parsed = parse_settings([], IN_POD)
    plain = OperatorSettings(release_namespace="warmfleet")

    own = {"identity", "version", "router_pod_labels"}
    for name in OperatorSettings.__slots__:
        if name not in own:
            assert getattr(parsed, name) == getattr(plain, name), name


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--release-namespace", "No"], "--release-namespace"),
        (["--namespace", "a/b"], "--namespace"),
        (["--default-resources", "[]"], "--default-resources"),
        (["--default-resources", "{"], "--default-resources"),
        (["--router-pod-labels", '{"a": 1}'], "--router-pod-labels"),
        (["--worker-scrapers", "{}"], "--worker-scrapers"),
        (["--worker-scrapers", "[1]"], "--worker-scrapers"),
        (["--resync-seconds", "0"], "--resync-seconds"),
        (["--workers", "0"], "--workers"),
        (["--lease-renew-seconds", "20"], "--lease-renew-seconds"),
        (["--image-pull-secret", "A"], "--image-pull-secret"),
        (["--release-name", "a/b"], "--release-name"),
        (["--adopt-release", "blue"], "--adopt-release"),
        (["--adopt-release", "models/"], "--adopt-release"),
        (["--dns-port", "0"], "--dns-port"),
        (["--dns-peers", "{}"], "--dns-peers"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(
    arguments: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_settings(arguments, IN_POD)

    assert stopped.value.code == 2
    assert names in capsys.readouterr().err


def test_without_a_namespace_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([], {})

    assert "WARMFLEET_POD_NAMESPACE" in capsys.readouterr().err
