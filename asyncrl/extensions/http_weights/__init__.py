"""New weights come over HTTP: from the trainer, from engine to engine, and to an engine's other machines."""
