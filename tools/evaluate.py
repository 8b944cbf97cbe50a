#!/usr/bin/env python3
"""The command `ddltrain evaluate` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["evaluate", *sys.argv[1:]]))
