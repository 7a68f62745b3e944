# SPDX-License-Identifier: BSD-3-Clause
"""`python -m blockscale.cli` is the command `blockscale`, as `python -m blockscale` is."""

from blockscale.cli import main

if __name__ == "__main__":
    main()
