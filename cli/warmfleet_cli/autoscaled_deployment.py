"""A manifest of a deployment that is scaled: for `top` and `simulate`."""

from pathlib import Path

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_contracts.resources.manifests import load_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment


def read_autoscaled(file: Path) -> tuple[ModelDeployment, AutoscalingSpec]:
    """The ModelDeployment of a file, and its `spec.autoscaling`.

    Raises:
        ManifestError: the file is no ModelDeployment.
        CliError: it has no `spec.autoscaling`.
    """
    deployment = load_manifest(file, local=True)
    if deployment.spec.autoscaling is None:
        raise CliError(
            f"{file} has no spec.autoscaling",
            advice="examples/autoscaling.yaml shows the three lines that are needed",
            exit_code=ExitCode.USAGE,
        )
    return deployment, deployment.spec.autoscaling
