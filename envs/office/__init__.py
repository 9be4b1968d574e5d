"""Work with the tools of an office whose state keeps changing."""
