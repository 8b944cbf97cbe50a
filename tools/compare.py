#!/usr/bin/env python3
"""The command `ddltrain compare` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["compare", *sys.argv[1:]]))
