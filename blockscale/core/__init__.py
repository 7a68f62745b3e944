"""What a number means: formats and their reference. No device, no files."""
