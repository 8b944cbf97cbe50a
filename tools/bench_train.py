#!/usr/bin/env python3
"""The command `ddltrain bench-train` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["bench-train", *sys.argv[1:]]))
