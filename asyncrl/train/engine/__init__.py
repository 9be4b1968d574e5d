"""The DeepSpeed engine, its optimizers, and the optional ways to spread a model over ranks."""
