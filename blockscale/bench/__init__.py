"""Measuring: contestants take turns, and figures are ratios to a ceiling of the same run."""
