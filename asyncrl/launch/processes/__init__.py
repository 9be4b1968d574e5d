"""Processes of a run: started, watched, started again."""
