"""Engines sample by kernels whose results do not depend on what else is in the batch."""
