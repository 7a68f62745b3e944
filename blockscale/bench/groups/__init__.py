"""What is measured: one group of cases a file, with a function `cases(settings)`."""
