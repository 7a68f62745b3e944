# SPDX-License-Identifier: BSD-3-Clause
"""A benchmark's run, read from its file as plain data and told in tables, plots and a page."""
