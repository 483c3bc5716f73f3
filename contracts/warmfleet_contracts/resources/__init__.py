"""The ModelDeployment resource and what operator, router, worker and CLI agree on about it.

Public names: `model_deployment.ModelDeployment` (pydantic), `manifests.load_manifest` (from YAML), owners
of served names in `ownership`, condition types and reasons in `conditions`, command lines in `worker_flags`
and `model_fetch`, what a fetch reports in `fetch_outcome`, what a Hugging Face hub is asked and answers in
`hub`, amounts such as `64Mi` in `quantities`, sizes of catalog models in `catalog_sizes`, memory of engines
in `engine_memory` and of workers in `worker_memory`. `fields`, `model_spec` and `autoscaling_spec` are parts
of the resource. Imports `decoding`, `errors` and `names`.
"""
