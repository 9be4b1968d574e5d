"""Sandboxes of this machine that another program makes."""
