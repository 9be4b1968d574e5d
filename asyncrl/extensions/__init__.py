"""Optional capabilities of a run, a folder each: its code, and in `extension.toml` what it adds where.

`asyncrl.extensions.table` reads these files; `asyncrl.extensions.installed` finds what other packages add.
"""
