# SPDX-License-Identifier: BSD-3-Clause
"""The reference's meaning, fast. One folder a backend; its files are named after their ops."""
