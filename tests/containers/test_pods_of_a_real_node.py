"""A kubelet passes the list of tests that process nodes pass."""

import pytest

from warmfleet_testing.node_suite.node_api import *  # noqa: F403 - its tests are collected here
from warmfleet_testing.node_suite.pods import *  # noqa: F403 - its tests are collected here

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]
