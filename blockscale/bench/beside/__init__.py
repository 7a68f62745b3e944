# SPDX-License-Identifier: BSD-3-Clause
"""This checkout beside another one: a process each, which take turns case by case."""
