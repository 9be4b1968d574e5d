"""A tier of the engines' KV cache in host memory."""
