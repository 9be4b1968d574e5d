"""Models in Python packages and GGUF files."""
