#!/usr/bin/env python3
"""The command `ddltrain train` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["train", *sys.argv[1:]]))
