"""The commands. A file here defines one, as a function of the file's own name."""
