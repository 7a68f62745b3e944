# SPDX-License-Identifier: BSD-3-Clause
"""Producers whose rules are known, one a file of this folder, found by its name. A file defines

PROFILES  its profiles, all versions of them: the newest of a name first. Their names begin with
          the file's own, `torchao.int8`.
"""
