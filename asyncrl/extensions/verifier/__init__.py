"""An agent that verifies what another one did, trained on the verdicts of the environment."""
