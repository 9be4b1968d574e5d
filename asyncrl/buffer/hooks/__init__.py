"""The hooks of the ledger that there are, a module each; `configured` makes those of a run."""
