"""The harnesses that come with asyncrl, and what the plain shell loop runs."""
