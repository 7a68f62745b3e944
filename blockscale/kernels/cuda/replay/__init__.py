# SPDX-License-Identifier: BSD-3-Clause
"""Calls that were made before are made again, without the Python that decided them."""
