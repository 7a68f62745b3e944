# SPDX-License-Identifier: BSD-3-Clause
"""Speed, measured: contestants take turns; figures are ratios to a ceiling of the same run."""
