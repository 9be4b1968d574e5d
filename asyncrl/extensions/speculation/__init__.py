"""Engines propose tokens cheaply and verify them together."""
