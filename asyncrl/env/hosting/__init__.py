"""Where sessions run and how their errors are sorted."""
