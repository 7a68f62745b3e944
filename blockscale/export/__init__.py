"""Files for others, and ours."""
