# SPDX-License-Identifier: BSD-3-Clause
"""Models under power-of-two scales on integers and shifts alone (docs/power_of_two.md)."""
