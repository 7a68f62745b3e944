"""Element by element, of two tensors or of one and a number."""
