"""Formats of tool calls and of reasoning that vLLM reads."""
