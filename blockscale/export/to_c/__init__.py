"""C99: an integer graph as one file, from values and moves to steps, memory and text."""
