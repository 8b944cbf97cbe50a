#!/usr/bin/env python3
"""The command `ddltrain prepare` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["prepare", *sys.argv[1:]]))
