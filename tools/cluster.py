#!/usr/bin/env python3
"""The command `ddltrain cluster` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["cluster", *sys.argv[1:]]))
