"""Models that Python packages carry or that are GGUF files, made into folders."""
