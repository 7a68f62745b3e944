"""What ops that only move elements make of codes, and of the scales beside them."""
