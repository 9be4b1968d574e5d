"""The experience buffer: staleness arithmetic and the task ledger. No HTTP here."""
