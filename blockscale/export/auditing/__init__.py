# SPDX-License-Identifier: BSD-3-Clause
"""The audit: what in a file is really low-bit, read from its bytes; nothing of it is executed."""

from blockscale.export.auditing.file_kinds import audit as audit
