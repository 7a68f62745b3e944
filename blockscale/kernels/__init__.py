"""The same meaning as the reference, fast. One folder a backend; its files are named after their ops."""
