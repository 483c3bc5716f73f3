"""Paths of the Kubernetes REST API."""


def resource_path(
    api_version: str, plural: str, *, namespace: str = "", name: str = "", subresource: str = ""
) -> str:
    """Path of a collection, of one object or of its subresource; without a namespace, of all namespaces.

    >>> resource_path("apps/v1", "deployments", namespace="models", name="chat", subresource="scale")
    '/apis/apps/v1/namespaces/models/deployments/chat/scale'
    >>> resource_path("v1", "pods")
    '/api/v1/pods'
    """
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, (f"{root}{scope}/{plural}", name, subresource)))
