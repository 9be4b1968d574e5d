"""How weight files come to engines, one folder a way: the trainer's side and the engines' routes."""
