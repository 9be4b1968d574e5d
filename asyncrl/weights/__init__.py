"""Moving weights from the trainer to engines: files, transports, and the vLLM plugin."""
