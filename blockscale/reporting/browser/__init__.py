# SPDX-License-Identifier: BSD-3-Clause
"""One page that quantizes in the visitor's browser, on the visitor's GPU, with our shaders."""
