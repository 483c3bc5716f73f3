"""The worker's HTTP server; it holds no model and imports no torch.

Public: `app.build_app` with all routes; `engine_client.EngineClient`, the engine as the server uses it;
`sequence_handle.SequenceHandle`, one sequence in the engine; `events.EventHub`, the cache's event stream;
`state.WorkerState`, what all endpoints share; `prewarm.Warmup`, when it takes requests;
`token_texts.TokenTexts`; `watchdog.StepWatchdog`. Imports `engine` (messages, sampling parameters,
validation), `metrics` and `settings`.
"""
