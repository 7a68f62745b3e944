"""What is to know of a whole model: what is around it, and what training took out of it."""
