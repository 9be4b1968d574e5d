"""What features of a recipe exclude each other, one file a feature. Imports no torch."""
