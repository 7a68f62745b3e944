"""The commands: one file each, which defines a function of the file's own name."""
