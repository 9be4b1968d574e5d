"""Optimizers that keep less than AdamW."""
