"""What comes from outside and is not trusted: files, JSON, names, patterns (docs/limits.md)."""
