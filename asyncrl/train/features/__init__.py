"""Optional features of the trainer, each a callback: `asyncrl.train.loop.configured` names them."""
