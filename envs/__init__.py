"""The environments that come with asyncrl, one folder each. Imported as `asyncrl.envs`."""
