# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers in a graph: the ways to run one, and which is the fastest as measured."""
