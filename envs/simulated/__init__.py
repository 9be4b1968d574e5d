"""An environment that a language model simulates."""
