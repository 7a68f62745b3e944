"""Element by element, of one tensor: activations of networks."""
