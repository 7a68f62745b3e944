# SPDX-License-Identifier: BSD-3-Clause
"""A stored model under the names, and in the pieces, that a model of transformers has today."""
