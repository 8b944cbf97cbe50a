"""Going on after a fault, perhaps with fewer ranks.

The global batch stays, and with it the steps, their records and the learning rate: the ranks that are left take larger shares.
"""

from collections.abc import Sequence
from dataclasses import replace

from ddltrain.errors import LaunchError
from ddltrain.launch.hosts import Host


def ranks_to_go_on(num_left: int, min_ranks: int, group: int) -> int:
    """How many of the ranks that are left go on: all, as far as they fill groups that normalize together.

    Raises:
        LaunchError: fewer than `min_ranks`, or none.
    """
    num_ranks = num_left - num_left % group
    if num_ranks >= max(1, min_ranks):
        return num_ranks
    groups = f", in groups of {group} (bn.group)" if group > 1 else ""
    raise LaunchError(
        f"{num_left} rank(s) are left, at least {max(1, min_ranks)} are wanted (--min-ranks){groups}: "
        "mend the hosts and go on with --resume"
    )


def first_ranks(hosts: Sequence[Host], num_ranks: int) -> list[Host]:
    """The hosts that hold the first `num_ranks` ranks."""
    kept = []
    for host in hosts:
        taken = min(host.num_ranks, num_ranks)
        if taken:
            kept.append(replace(host, num_ranks=taken))
        num_ranks -= taken
    return kept
