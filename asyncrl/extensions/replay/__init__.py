"""Earlier groups, and earlier successes, trained again."""
