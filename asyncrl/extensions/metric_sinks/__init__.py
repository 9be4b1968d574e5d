"""The metrics of a run in Weights & Biases, MLflow, trackio and SwanLab."""
