"""Whom a container runs as."""

import pytest

from warmfleet_devcluster.node.container.identity import CAPABILITIES, DEFAULT_CAPABILITIES, identity
from warmfleet_devcluster.node.errors import ContainerConfigError


def test_the_container_wins_over_the_pod_and_the_pod_over_the_image():
    assert identity({}, {}, "65532").uid == 65532
    assert identity({}, {}, "65532:7").gid == 7
    assert identity({"runAsUser": 1}, {}, "65532").uid == 1
    assert identity({"runAsUser": 1, "runAsGroup": 3}, {"runAsUser": 2}, "0").uid == 2
    assert identity({"runAsUser": 1, "runAsGroup": 3}, {"runAsUser": 2}, "0").gid == 3


def test_groups_are_the_pods():
    assert identity({"fsGroup": 9, "supplementalGroups": [5, 4]}, {}, "0").groups == (4, 5, 9)


@pytest.mark.parametrize(
    ("pod", "container", "user", "message"),
    [
        ({"runAsNonRoot": True}, {}, "0", "image will run as root"),
        ({"runAsNonRoot": True}, {}, "www-data", "non-numeric user"),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, "5", "non-root policy"),
        ({}, {}, "www-data", "unable to find user www-data"),
    ],
)
def test_a_root_user_where_none_may_be_is_refused(pod, container, user, message):
    with pytest.raises(ContainerConfigError, match=message):
        identity(pod, container, user)


def test_non_root_is_enough():
    assert identity({"runAsNonRoot": True}, {}, "65532").uid == 65532
    assert identity({"runAsNonRoot": True, "runAsUser": 5}, {}, "0").uid == 5


def test_capabilities_are_the_runtimes_less_what_is_dropped_plus_what_is_added():
    def names(asked):
        return {CAPABILITIES[number] for number in identity({}, {"capabilities": asked}, "0").capabilities}

    assert names({}) == DEFAULT_CAPABILITIES
    assert names({"drop": ["ALL"]}) == set()
    assert names({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}) == {"NET_BIND_SERVICE"}
    assert names({"drop": ["CAP_CHOWN"]}) == DEFAULT_CAPABILITIES - {"CHOWN"}
    assert names({"add": ["ALL"]}) == set(CAPABILITIES)
    assert len(identity({}, {"privileged": True}, "0").capabilities) == len(CAPABILITIES)
