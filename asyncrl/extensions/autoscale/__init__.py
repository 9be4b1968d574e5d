"""Processes of a role are added and retired while the run goes on."""
