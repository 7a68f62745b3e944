# SPDX-License-Identifier: BSD-3-Clause
"""What stands before quantize_ and its kin: wrong uses are found before anything is changed."""
