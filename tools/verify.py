#!/usr/bin/env python3
"""The command `ddltrain verify` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["verify", *sys.argv[1:]]))
