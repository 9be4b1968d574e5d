"""Solve math problems with a sandboxed Python tool."""
