#!/usr/bin/env python3
"""The command `ddltrain bench-allreduce` as a script."""

import sys

from ddltrain.cli.main import main

sys.exit(main(["bench-allreduce", *sys.argv[1:]]))
