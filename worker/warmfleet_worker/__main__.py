"""`python -m warmfleet_worker`: one model behind an OpenAI-compatible server, its engine in a child process.

Exit codes: 0 after a drain, 1 when the engine failed, died or stalled, 2 when the start was refused, as for
a model that does not fit into memory.
"""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import msgspec
import structlog

from warmfleet_runtime.memory import exclude_from_collection, importing, return_freed_memory

with importing():
    from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_contracts.prompts.encoder import PromptEncoder
    from warmfleet_runtime.http.descriptors import connections_that_fit
    from warmfleet_runtime.http.listener import listen
    from warmfleet_runtime.http.server import Server
    from warmfleet_runtime.logs import configure_logs
    from warmfleet_worker.metrics import WorkerMetrics
    from warmfleet_worker.model_store.assets import load_prompt_assets
    from warmfleet_worker.server.app import build_app
    from warmfleet_worker.server.engine_client import ENGINE_MODULE, ProcessEngineClient
    from warmfleet_worker.server.events import EventHub
    from warmfleet_worker.server.prewarm import Warmup
    from warmfleet_worker.server.state import ReportForwarder, WorkerState
    from warmfleet_worker.server.token_texts import TokenTexts
    from warmfleet_worker.server.watchdog import watch_engine
    from warmfleet_worker.settings import WorkerSettings, parse_settings
    from warmfleet_worker.termination_message import write_termination_message

SHUTDOWN_SECONDS = 5
"""How long open connections may take to end after the last answer."""

log = structlog.get_logger("warmfleet.worker")


def main(
    arguments: Sequence[str] | None = None,
    *,
    engine_module: str = ENGINE_MODULE,
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
) -> int:
    """Serve until a signal or the end of the engine; returns the exit code.

    `contract_versions` are those that it speaks with routers, all that this release knows or fewer.
    """
    return_freed_memory()
    settings = parse_settings(arguments)
    configure_logs(uid=settings.uid)
    listener = listen(settings.host, settings.port, settings.uid)
    if listener is None:
        return 2
    try:
        worker, engine = build_worker(settings, engine_module, contract_versions)
    except WarmfleetError as error:
        _report_refusal(settings, str(error))
        return 2
    server = Server(
        build_app(worker),
        shutdown_seconds=SHUTDOWN_SECONDS,
        max_connections=connections_that_fit(settings.max_connections, descriptors_each=1),
    )
    # Libraries and tokenizer. All streams stand still while a full collection walks what there is.
    exclude_from_collection(collect_all=True)
    with server.runner() as runner:
        return runner.run(serve(worker, engine, server, listener))


def build_worker(
    settings: WorkerSettings,
    engine_module: str = ENGINE_MODULE,
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
) -> tuple[WorkerState, ProcessEngineClient]:
    """All parts of a worker, nothing started yet.

    Raises:
        ModelError: tokenizer or template are missing or damaged.
        PromptError: they cannot be used.
    """
    assets = load_prompt_assets(settings.model_path)
    encoder = PromptEncoder.from_assets(assets)
    metrics = WorkerMetrics(settings.served_names[0])
    events = EventHub(on_dropped=metrics.on_dropped_subscriber)
    warmup = Warmup(events, settings.prewarm_seconds)
    engine_settings = msgspec.structs.replace(
        settings.engine,
        tokenizer_digest=bytes.fromhex(encoder.tokenizer_digest),
        chat_template_digest=encoder.chat_template_digest,
    )
    engine = ProcessEngineClient(engine_settings, ReportForwarder(events, metrics, warmup), engine_module)
    worker = WorkerState(
        settings=settings,
        assets=assets,
        encoder=encoder,
        token_texts=TokenTexts(encoder.tokenizer),
        engine=engine,
        events=events,
        warmup=warmup,
        metrics=metrics,
        started_seconds=int(time.time()),
        contract_versions=contract_versions,
    )
    return worker, engine


async def serve(
    worker: WorkerState, engine: ProcessEngineClient, server: Server, listener: socket.socket
) -> int:
    """Run engine and server until a drain is complete or one of them ends; returns the exit code."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():  # the second one: do not wait for open answers
            server.should_exit = server.force_exit = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    engine_run = asyncio.create_task(engine.run())
    server_run = asyncio.create_task(server.serve(sockets=[listener]))
    drained = asyncio.create_task(_drain_after(stop, worker))
    watchdog = asyncio.create_task(watch_engine(worker, engine))
    await asyncio.wait({engine_run, server_run, drained}, return_when=asyncio.FIRST_COMPLETED)
    failed = engine_run.done()
    refused = failed and engine.refused
    worker.ended = True
    if refused:
        _report_refusal(worker.settings, await engine_run)
    elif failed:
        reason = await engine_run
        log.error("the engine ended, so does this worker", reason=reason)
        write_termination_message(worker.settings.termination_message, f"the engine ended: {reason}")
    # Streams that are still open end with an error object, because their engine is gone.
    for task in (watchdog, drained, engine_run):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    worker.events.close()
    server.should_exit = True
    await server_run
    exit_code = 2 if refused else int(failed)
    log.info("worker ended", exit_code=exit_code)
    return exit_code


def _report_refusal(settings: WorkerSettings, reason: str) -> None:
    log.error("cannot serve this model", model=str(settings.model_path), reason=reason)
    write_termination_message(settings.termination_message, f"cannot serve this model: {reason}")


async def _drain_after(stop: asyncio.Event, worker: WorkerState) -> None:
    """After `stop`: refuse new requests, notify routers, and wait for live answers until the deadline."""
    await stop.wait()
    log.info("draining", deadline_seconds=worker.settings.drain_seconds)
    worker.draining = True
    worker.events.drain()
    worker.engine.drain()
    try:
        async with asyncio.timeout(worker.settings.drain_seconds):
            await worker.open_answers.wait_for_none()
    except TimeoutError:
        log.warning("answers were cut off at the drain deadline")


if __name__ == "__main__":
    sys.exit(main())
