# SPDX-License-Identifier: BSD-3-Clause
"""Device code in Gluon, below Triton, for Hopper's own instructions. Imported when first used."""
