"""The code that faults are put into: small functions without state, loops that always end, JSON in and out."""
