"""Calls that were made before are made again, without the Python that decided them."""
