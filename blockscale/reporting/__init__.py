# SPDX-License-Identifier: BSD-3-Clause
"""What people look at: tables, charts and pages, made of plain data that others measured."""
