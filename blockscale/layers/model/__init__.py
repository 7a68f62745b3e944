# SPDX-License-Identifier: BSD-3-Clause
"""What is to know of a whole model: what is around it, and what training took out of it."""
