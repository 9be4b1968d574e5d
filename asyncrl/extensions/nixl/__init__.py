"""Engines read new weights from the memory of the trainer's first rank, by NIXL."""
