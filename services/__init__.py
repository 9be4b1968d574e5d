"""The processes: parse, build, serve. Imported as `asyncrl.services`."""
