"""Answer questions about a database."""
