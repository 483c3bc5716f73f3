"""What prefixes cost this fleet: why they were not cached, how long tokens took, what was refused, per model.

Public: `misses` (`MissCause`, `PromptCauses`, `prompt_causes`, `missed_tokens`: pure), `ghost_list`
(`GhostList`: what happened to blocks that no worker holds any more) and `model_counts` (`ModelCounts`, since
the router's start). Beside `workers`: imports contracts only, no clock, no I/O.
"""
