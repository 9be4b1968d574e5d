"""Low-rank adapters (LoRA), trained instead of all weights and served beside one another."""
