# SPDX-License-Identifier: BSD-3-Clause
"""What work that takes long needs: to tell how far it is, and to be closed however it ends."""
