# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/ops/integer/test_products.py: `SETTINGS`."""

SETTINGS = [  # dims, groups, stride, padding, dilation
    (1, 1, [2], [1], [1]),
    (2, 2, [1, 2], [1, 0], [2, 1]),
    (2, 4, [1, 1], [1, 1], [1, 1]),  # depthwise
    (3, 1, [1, 1, 1], [0, 1, 0], [1, 1, 2]),
]
