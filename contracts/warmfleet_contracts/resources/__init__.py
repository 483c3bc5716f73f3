"""The ModelDeployment resource and what operator, router, worker and CLI agree on about it.

`model_deployment` is the resource as pydantic models, `manifests` reads it from YAML, `ownership` decides
which deployment owns a served name, `conditions` lists what the operator reports, `worker_flags` and
`model_fetch` derive command lines. Imports `errors` and `names`.
"""
