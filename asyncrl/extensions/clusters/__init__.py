"""The further machines of a run are those of a Slurm job, of a Ray cluster, or pods of Kubernetes."""
