# SPDX-License-Identifier: BSD-3-Clause
"""What comes from outside and is not trusted: files, JSON, names, patterns (docs/limits.md)."""
