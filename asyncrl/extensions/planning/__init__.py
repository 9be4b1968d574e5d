"""What a run would take, found without starting it."""
