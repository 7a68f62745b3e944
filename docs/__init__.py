# SPDX-License-Identifier: BSD-3-Clause
"""Documentation, and what makes its generated pages."""
