"""`warmfleet simulate`: replays traffic through the production router and scheduler, in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmfleet_cli.autoscaled_deployment import read_autoscaled
from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_line
from warmfleet_cli.simulate_bars import SimulationBars
from warmfleet_cli.simulate_tables import print_comparison, print_reports, result_text
from warmfleet_cli.simulate_timeline import render_timeline
from warmfleet_runtime.processors import usable_cores

if TYPE_CHECKING:
    from warmfleet_contracts.resources.model_deployment import ModelDeployment
    from warmfleet_simulator.comparison import SimulatedDeployment
    from warmfleet_simulator.report import Report
    from warmfleet_simulator.scaling.objective import Objective
    from warmfleet_simulator.traces.traffic import Traffic

MAX_REPLICAS: Final = 1024
"""Most endpoints that one router serves."""
DEFAULT_REPLICAS: Final = 16
DEFAULT_GPU: Final = "H100"
DEFAULT_MODEL: Final = "Llama-3.1-8B"


def simulate(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="File of requests, plain or gzip: Mooncake's, Azure's, or of `warmfleet record`."),
    ] = None,
    generate: Annotated[
        str,
        typer.Option(
            metavar="NAME[,FIELD=VALUE...]",
            help="In place of a trace: steady, bursty, shared, diurnal or agent, with other parameters than "
            "their defaults.",
        ),
    ] = "",
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_REPLICAS,
            help="Size of the fleet, at first; with --compare of the largest fixed one. Default: without "
            f"--compare spec.replicas of --file; else {DEFAULT_REPLICAS}.",
        ),
    ] = None,
    routing: Annotated[
        str,
        typer.Option(
            help="Comma-separated ways to route: LowestCost, LeastLoaded, RoundRobin, ConsistentHash, "
            "ApproximatePrefix, or: all."
        ),
    ] = "LowestCost",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[:SETTING]",
            help="What decides the number of replicas: Fixed, Operator, or another autoscaler's with its "
            "setting, as KvUtilization:60 (docs/reference/simulator.md). All but Fixed need --slo.",
        ),
    ] = "Fixed",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="ModelDeployment by whose spec.autoscaling the operator decides, and by whose "
            "engine.targetStepMilliseconds replicas plan their steps; needs --policy Operator or --compare. "
            "Default: all defaults, the objective as latency targets, and its steps.",
        ),
    ] = None,
    slo: Annotated[
        Path | None, typer.Option(help="File of service level objectives, as examples/slo.yaml.")
    ] = None,
    workload: Annotated[str, typer.Option(help="Which one of the file; not needed for a single one.")] = "",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare the operator's policy with fleets that know the traffic, of --replicas and "
            "fewer, and with other autoscalers, each at its best setting.",
        ),
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            help="Of a replica: L4, L40S, A100-80GB, H100, H200, MI300X; 8xH100 for eight. Default: the "
            "objective's, or H100."
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="Llama-3.1-8B or -70B, Qwen3-8B or -32B. Default: the objective's, or Llama-3.1-8B."
        ),
    ] = "",
    step_times: Annotated[
        Path | None,
        typer.Option(help="JSON file with step times that were measured, in place of the GPU's."),
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a replica's KV cache, in place of the GPU's.")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, max=8192, help="Tokens of a KV block.")] = 512,
    seats: Annotated[int, typer.Option(min=1, max=4096, help="Most sequences that a replica runs.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the network's delays.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Simulations at a time. Default: one per core.")
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            help="Write a timeline of pods, demand and requests in time to this file: of the one routing, or "
            "with --compare of the operator's policy."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Replay a trace through a fleet of simulated replicas, and compare ways to route and to scale.

    Router and scheduler are the production code; a step takes the time that the GPU's data sheet gives it.
    """
    try:
        from warmfleet_simulator import comparison  # noqa: PLC0415 - needs what the router needs
        from warmfleet_simulator.parallel_runs import open_runs  # noqa: PLC0415
        from warmfleet_simulator.replica.settings import (  # noqa: PLC0415
            DEFAULT_TARGET_STEP_MILLISECONDS,
        )
        from warmfleet_simulator.scaling.objective import read_objective  # noqa: PLC0415
        from warmfleet_simulator.scaling_comparison import compare_scaling  # noqa: PLC0415
        from warmfleet_simulator.simulation import SimulationSettings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CliError(
            f"the simulator runs the router's code, which needs {error.name}",
            advice="pip install 'warmfleet[cli,router]'",
        ) from error
    objective = read_objective(slo, workload) if slo is not None else None
    if objective is None and (compare or policy.partition(":")[0] != comparison.FIXED):
        raise CliError(
            "a policy needs an objective",
            advice="--slo examples/slo.yaml --workload conversation",
            exit_code=ExitCode.USAGE,
        )
    deployed = _simulated_deployment(file, is_operator=compare or policy == comparison.OPERATOR)
    traffic = _traffic(trace, generate, objective)
    routings = comparison.named_routings(routing)
    if svg is not None and len(routings) > 1:
        raise CliError("a timeline shows one routing", exit_code=ExitCode.USAGE)
    choice = comparison.ReplicaChoice(
        gpu=gpu or (objective.gpu if objective is not None else DEFAULT_GPU),
        model=model or (objective.model if objective is not None else DEFAULT_MODEL),
        step_times=step_times,
        kv_tokens=kv_tokens,
        block_size_tokens=block_size,
        seats=seats,
        target_step_milliseconds=(
            (deployed.target_step_milliseconds if deployed is not None else None)
            or (objective.target_step_milliseconds if objective is not None else None)
            or DEFAULT_TARGET_STEP_MILLISECONDS
        ),
    )
    # The largest fixed fleet of a comparison is no matter of a deployment.
    by_file = deployed.bounded(deployed.replicas) if deployed is not None and not compare else None
    first = replicas or by_file or DEFAULT_REPLICAS
    settings = SimulationSettings(
        replica=choice.settings(),
        replicas=first,
        routing=routings[0],
        seed=seed,
        objective=objective,
    )
    record: dict[str, Any] = {
        "traffic": traffic.name,
        "gpu": choice.gpu,
        "model": choice.model,
        "replica": settings.replica,
        "deployment": deployed.name if deployed is not None else None,
    }
    jobs = jobs or usable_cores()
    jobs = jobs if compare else min(jobs, len(routings))
    compared, reports = None, list["Report"]()
    with (
        SimulationBars(result_text) as bars,
        open_runs(traffic, jobs=jobs, watcher=bars) as runs,
    ):
        if compare and objective is not None:
            compared = compare_scaling(runs, settings, objective, deployed)
            record["comparison"] = compared
        else:
            settings = comparison.with_policy(settings, policy, objective, deployed)
            reports = [done.report for done in comparison.compare_routings(runs, routings, settings)]
            record["reports"] = reports
    if svg is not None:
        report = compared.operator.report if compared is not None else reports[0]
        title = f"{comparison.OPERATOR if compare else policy}, {report.routing}, {Path(traffic.name).name}"
        percent = objective.percent if objective is not None else None
        _write(svg, render_timeline(report, title=title, percent=percent))
    if output is OutputFormat.JSON:
        print_json(record)
        return
    if deployed is not None:
        # Each compared policy begins with what the first windows need.
        first_of = settings.replicas if compared is None else None
        print_line(make_console(), _header(deployed, first_of, choice.target_step_milliseconds))
    if compared is not None:
        print_comparison(compared)
    else:
        print_reports(reports)


def _write(path: Path, document: str) -> None:
    try:
        path.write_text(document, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _simulated_deployment(file: Path | None, *, is_operator: bool) -> "SimulatedDeployment | None":
    """The deployment of a manifest, if one is given.

    Raises:
        ManifestError: the file is no ModelDeployment.
        CliError: it has no `spec.autoscaling`, or one that may sleep, or the policy is not the operator's.
    """
    from warmfleet_simulator.comparison import SimulatedDeployment  # noqa: PLC0415

    if file is None:
        return None
    if not is_operator:
        raise CliError(
            "a deployment's spec.autoscaling is the operator's policy",
            advice="--policy Operator, or --compare",
            exit_code=ExitCode.USAGE,
        )
    deployment, spec = read_autoscaled(file)
    if not spec.min_replicas:
        raise CliError(
            f"{file}: spec.autoscaling.minReplicas: is 0, and a simulated fleet does not sleep",
            advice="minReplicas: 1",
            exit_code=ExitCode.MANIFEST,
        )
    return SimulatedDeployment(
        deployment.metadata.name,
        spec,
        deployment.spec.replicas,
        deployment.spec.engine.target_step_milliseconds,
        _not_simulated(deployment),
    )


def _not_simulated(deployment: "ModelDeployment") -> tuple[str, ...]:
    """What a simulated engine, which is ours and fills steps by their time, has otherwise."""
    engine = deployment.spec.engine
    fields = (
        (engine.type != "Warmfleet", f"engine.type {engine.type}"),
        (engine.max_batched_tokens is not None, "engine.maxBatchedTokens"),
    )
    return tuple(name for given, name in fields if given)


def _header(deployed: "SimulatedDeployment", first: int | None, milliseconds: int) -> str:
    """Whose policy it is, with what the simulation takes from elsewhere."""
    own = deployed.target_step_milliseconds is not None
    parts = (
        f"Operator:{deployed.name}, {deployed.spec.min_replicas} to {deployed.spec.max_replicas} replicas",
        f"begins with {first}" if first is not None else "",
        f"steps planned for {milliseconds} ms, {'its own' if own else 'as the objective has them'}",
        f"not simulated: {', '.join(deployed.not_simulated)}" if deployed.not_simulated else "",
    )
    return ", ".join(part for part in parts if part)


def _traffic(trace: Path | None, generate: str, objective: "Objective | None") -> "Traffic":
    """What to replay: a file, or a workload, by default the objective's."""
    from warmfleet_simulator.traces.traffic import RecordedTraffic  # noqa: PLC0415
    from warmfleet_simulator.workloads.named import GeneratedTraffic, workload_of  # noqa: PLC0415

    if trace is not None and not generate:
        return RecordedTraffic(trace)
    if generate and trace is None:
        return GeneratedTraffic(workload_of(generate))
    if trace is None and objective is not None and objective.generate is not None:
        return GeneratedTraffic(objective.generate)
    raise CliError(
        "give either a trace or a workload to generate",
        advice="--trace FILE, or --generate steady",
        exit_code=ExitCode.USAGE,
    )
