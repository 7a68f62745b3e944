"""From a float model and some data to a quantized one: observers, calibration, algorithms."""
