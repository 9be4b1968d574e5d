"""The model that a run starts from, and the folder of its weights."""
