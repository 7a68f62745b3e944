# SPDX-License-Identifier: BSD-3-Clause
"""A page about a quantized model or a search: what is in it, how far off it is, from what files."""
