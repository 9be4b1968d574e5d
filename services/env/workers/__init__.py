"""Sessions in worker processes: a crash or a hang loses the sessions of one worker and nothing else."""
