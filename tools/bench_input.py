#!/usr/bin/env python3
"""The command `ddltrain bench-input` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["bench-input", *sys.argv[1:]]))
