# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries' names and bits, so that code written for them runs on blockscale unchanged."""

from blockscale.compat import torchao as torchao
