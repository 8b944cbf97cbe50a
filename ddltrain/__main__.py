"""`python -m ddltrain` is the command `ddltrain`."""

import sys

from ddltrain.cli.main import main

sys.exit(main())
