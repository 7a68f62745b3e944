# SPDX-License-Identifier: BSD-3-Clause
"""An attack on blockscale: `make attack`, which docs/reliability.md shows the last figures of."""
