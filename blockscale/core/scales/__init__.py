"""Scales and offsets that are quantized themselves: levels below the first one."""
