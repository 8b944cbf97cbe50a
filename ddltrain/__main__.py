"""`python -m ddltrain` is the command `ddltrain`; our launcher starts ranks by it, too."""

import sys

from ddltrain.cli.main import main
from ddltrain.comm.guard import go_on_as_guarded_rank

go_on_as_guarded_rank()
sys.exit(main())
