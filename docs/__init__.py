"""Documentation, and what makes its generated pages."""
