"""A run over several machines: nodes started by hand, or by Slurm, Ray or Kubernetes."""
