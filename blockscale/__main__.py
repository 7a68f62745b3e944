# SPDX-License-Identifier: BSD-3-Clause
"""`python -m blockscale` is the command `blockscale`."""

from blockscale.cli import main

if __name__ == "__main__":
    main()
