"""A game for two players, who take from heaps."""
