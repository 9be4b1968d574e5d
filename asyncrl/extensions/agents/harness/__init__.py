"""Agent programs of others, each described by a TOML file, run in a sandbox on a task's folder.

file.py      what a file says
program.py   its program: installed once from a package registry or an image, or a path
image.py     the folder of a container image
agent.py     runs it for an episode, and has what it left judged
packaged/    the files that come with asyncrl
"""
