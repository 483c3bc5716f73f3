"""Builds a worker and serves it until a drain or the end of its engine, which is starting meanwhile."""

import asyncio
import signal
import socket
import time
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

import structlog

from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_runtime.http.descriptors import connections_that_fit
from warmfleet_runtime.http.server import Server
from warmfleet_runtime.memory import exclude_from_collection
from warmfleet_worker.engine_start import EngineProcess
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server.app import build_app
from warmfleet_worker.server.engine_client import ProcessEngineClient
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.prewarm import Warmup
from warmfleet_worker.server.state import ReportForwarder, WorkerState
from warmfleet_worker.server.token_texts import TokenTexts
from warmfleet_worker.server.watchdog import watch_engine
from warmfleet_worker.settings import WorkerSettings
from warmfleet_worker.start_clock import StartClock
from warmfleet_worker.termination_message import report_refusal, write_termination_message

SHUTDOWN_SECONDS: Final = 5
"""How long open connections may take to end after the last answer."""

log = structlog.get_logger("warmfleet.worker")


def run_worker(
    settings: WorkerSettings,
    assets: PromptAssets,
    engine_process: EngineProcess,
    listener: socket.socket,
    start: StartClock,
    *,
    contract_versions: AbstractSet[int],
) -> int:
    """Serve until a signal or the end of the engine; returns the exit code.

    Raises:
        PromptError: tokenizer or template cannot be used.
    """
    worker, engine = build_worker(settings, assets, engine_process, start, contract_versions)
    server = Server(
        build_app(worker),
        shutdown_seconds=SHUTDOWN_SECONDS,
        max_connections=connections_that_fit(settings.max_connections, descriptors_each=1),
    )
    # Libraries and tokenizer. All streams stand still while a full collection walks what there is.
    exclude_from_collection(collect_all=True)
    with server.runner() as runner:
        return runner.run(_serve(worker, engine, server, listener))


def build_worker(
    settings: WorkerSettings,
    assets: PromptAssets,
    engine_process: EngineProcess,
    start: StartClock,
    contract_versions: AbstractSet[int],
) -> tuple[WorkerState, ProcessEngineClient]:
    """All parts of a worker but its engine process, which has been started.

    Raises:
        PromptError: tokenizer or template cannot be used.
    """
    encoder = PromptEncoder.from_assets(assets)
    metrics = WorkerMetrics(settings.served_names[0], on_first_token=start.first_token)
    events = EventHub(on_dropped=metrics.on_dropped_subscriber, start=lambda: start.phases)
    warmup = Warmup(events, settings.prewarm_seconds, on_open=start.opened)
    engine = ProcessEngineClient(engine_process, ReportForwarder(events, metrics, warmup, start))
    worker = WorkerState(
        settings=settings,
        assets=assets,
        encoder=encoder,
        token_texts=TokenTexts(encoder.tokenizer),
        engine=engine,
        events=events,
        warmup=warmup,
        metrics=metrics,
        start=start,
        started_seconds=int(time.time()),
        contract_versions=contract_versions,
    )
    return worker, engine


async def _serve(
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
        report_refusal(worker.settings.termination_message, worker.settings.model_path, await engine_run)
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
