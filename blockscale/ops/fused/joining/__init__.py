"""Several tensors become one: each may have a format of its own."""
