"""Tasks for an agent at a shell, in the layout of Harbor's task folders."""
