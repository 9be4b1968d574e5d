"""Issues of repositories: records in the forms of SWE-bench, SWE-rebench, SWE-smith and R2E-Gym."""
