"""The cases, a file a group; each has `cases(settings)`."""
