"""Studies: methods compared over settings and seeds, from one file (`asyncrl study FILE`)."""
