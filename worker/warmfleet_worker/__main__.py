"""`python -m warmfleet_worker`: one model behind an OpenAI-compatible server, its engine in a child process.

Exit codes: 0 after a drain, 1 when the engine failed, died or stalled, 2 when the start was refused, as for
a model that does not fit into memory, 143 at SIGTERM before it served.
"""

import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from warmfleet_runtime.early_signals import end_on_sigterm
from warmfleet_runtime.memory import TERMINAL_LIBRARIES, importing, return_freed_memory

if __name__ == "__main__":
    end_on_sigterm()

# What the start of the engine needs, and no more: it takes longest.
with importing(without=TERMINAL_LIBRARIES):
    import msgspec

    from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_runtime.http.listener import listen
    from warmfleet_runtime.logs import configure_logs
    from warmfleet_worker.engine_program import EngineProgram, engine_program
    from warmfleet_worker.engine_start import start_engine
    from warmfleet_worker.model_store.assets import load_prompt_assets
    from warmfleet_worker.settings import parse_settings
    from warmfleet_worker.start_clock import StartClock, process_started_at
    from warmfleet_worker.termination_message import report_refusal


def main(
    arguments: Sequence[str] | None = None,
    *,
    program: EngineProgram | None = None,
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
) -> int:
    """Serve until a signal or the end of the engine; returns the exit code.

    `program` is the engine, by default that of the settings. `contract_versions` are those that it speaks
    with routers, all that this release knows or fewer.
    """
    start = StartClock(process_started_at())
    return_freed_memory()
    settings = parse_settings(arguments)
    configure_logs(uid=settings.uid)
    listener = listen(settings.host, settings.port, settings.uid)
    if listener is None:
        return 2
    try:
        program = program or engine_program(settings.engine_type)
        assets = load_prompt_assets(settings.model_path)
    except WarmfleetError as error:
        report_refusal(settings.termination_message, settings.model_path, str(error))
        return 2
    engine = start_engine(
        msgspec.structs.replace(
            settings.engine,
            tokenizer_digest=assets.digest,
            chat_template_digest=assets.chat_template_digest,
        ),
        program,
    )
    # Imported here: the engine imports its own libraries meanwhile.
    with importing(without=TERMINAL_LIBRARIES):
        from warmfleet_worker.app import run_worker  # noqa: PLC0415
    try:
        return run_worker(settings, assets, engine, listener, start, contract_versions=contract_versions)
    except WarmfleetError as error:
        engine.end()
        report_refusal(settings.termination_message, settings.model_path, str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
