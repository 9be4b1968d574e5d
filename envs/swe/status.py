"""What may become of a test."""

PASSED, MAINTAINED = ("PASSED", "XFAIL"), ("PASSED", "XFAIL", "SKIPPED")
WORST_FIRST = ("FAILED", "ERROR", "SKIPPED", "XFAIL", "PASSED")
