"""The policy as its own teacher: `teacher.path = "self"`."""
