"""Our own files: what a model in small numbers is saved to and loaded from."""
