"""What a run folder shows to people: steps, processes, failures and trajectories, read while a run writes them.

Nothing here writes into a run folder, and nothing loads torch.
"""
