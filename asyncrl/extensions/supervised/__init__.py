"""Supervised training of a user's model: rows to conversations, these to tokens, and the loop over them."""
