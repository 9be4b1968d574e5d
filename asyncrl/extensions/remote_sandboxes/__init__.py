"""Sandboxes in container engines, clusters and clouds. Importing a backend does not import its provider's package."""
