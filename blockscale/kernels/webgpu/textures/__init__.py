"""Tensors in 3-D textures, four elements of a row a texel, and the primitives on them."""
