"""Live fleets whose requests the simulator answers, too: workload, sleeping workers, replay, the command."""
