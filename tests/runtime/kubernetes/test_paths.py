import pytest

from warmfleet_runtime.kubernetes.paths import resource_path


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"api_version": "v1", "plural": "pods"}, "/api/v1/pods"),
        ({"api_version": "v1", "plural": "nodes", "name": "n"}, "/api/v1/nodes/n"),
        (
            {"api_version": "apps/v1", "plural": "deployments", "namespace": "models"},
            "/apis/apps/v1/namespaces/models/deployments",
        ),
        (
            {
                "api_version": "apps/v1",
                "plural": "deployments",
                "namespace": "models",
                "name": "chat",
                "subresource": "scale",
            },
            "/apis/apps/v1/namespaces/models/deployments/chat/scale",
        ),
    ],
)
def test_a_path_is_that_of_the_rest_api(arguments, path):
    assert resource_path(**arguments) == path
