# SPDX-License-Identifier: BSD-3-Clause
"""Parts of quantized tensors, cut from their codes and scales, and what is computed with many."""
