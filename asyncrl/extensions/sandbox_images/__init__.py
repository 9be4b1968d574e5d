"""Root file systems for sandboxes: what a Dockerfile says, built once for each content and kept."""
