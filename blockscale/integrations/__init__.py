"""Other libraries' loaders and savers, which get what they need to know of quantized models."""
