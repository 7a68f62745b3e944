"""The ways to multiply with a quantized weight, and what they share."""
