# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: one group of cases a file, with a function `cases(settings)`."""
