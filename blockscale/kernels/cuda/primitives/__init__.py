# SPDX-License-Identifier: BSD-3-Clause
"""What the primitives' ops launch, and how: views of a tensor's blocks, settings, programs."""
