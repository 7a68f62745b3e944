# SPDX-License-Identifier: BSD-3-Clause
"""bs.search and bs.recommend on all-MiniLM-L6-v2, into docs/search.json."""
