# SPDX-License-Identifier: BSD-3-Clause
"""The demonstration: a real model in many formats, measured."""
