"""New weights come to the engines over a torch.distributed group of the trainer's first rank and all their ranks."""
