# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale bench`, from a checkout: python -m benchmarks.run [--quick] [--resume] …"""

from blockscale.cli.app import app

if __name__ == "__main__":
    import sys

    app(["bench", *sys.argv[1:]])
