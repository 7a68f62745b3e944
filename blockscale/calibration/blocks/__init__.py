"""A model's repeated blocks, one after the other, each with what goes into it at hand."""
