"""Fewer elements than before: sums, extremes, pools."""
