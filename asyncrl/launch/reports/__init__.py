"""What a run reports while it runs."""
