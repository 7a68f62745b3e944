"""What a number means: formats and their reference. Plain Python and PyTorch, no device, no files."""
