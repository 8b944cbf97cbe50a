#!/usr/bin/env python3
"""The command `ddltrain extract` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["extract", *sys.argv[1:]]))
