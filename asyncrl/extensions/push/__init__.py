"""Models of runs put on a hub, with a card of what they are and how they came about."""
