#!/usr/bin/env python3
"""The command `ddltrain launch` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["launch", *sys.argv[1:]]))
