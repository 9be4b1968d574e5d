"""A curriculum chooses the tasks."""
