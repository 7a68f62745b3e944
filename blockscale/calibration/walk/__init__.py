"""Calibration block by block: not the whole model is run several times, but each block."""
