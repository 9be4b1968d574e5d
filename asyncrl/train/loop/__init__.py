"""The loop of the trainer: it takes batches, trains, publishes and commits."""
