#!/usr/bin/env python3
"""The command `ddltrain doctor` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["doctor", *sys.argv[1:]]))
