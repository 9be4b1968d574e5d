"""Text navigation on a grid."""
