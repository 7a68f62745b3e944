# SPDX-License-Identifier: BSD-3-Clause
"""What one calls on tensors. An op is a file, found by its name."""

from blockscale.core import import_all

import_all(__name__, __path__)
