"""A critic: values of the states in which tokens were sampled, on a trunk of its own or on the policy's."""
