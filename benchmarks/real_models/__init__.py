# SPDX-License-Identifier: BSD-3-Clause
"""What formats and recipes do to models with real weights, which package registries ship."""
