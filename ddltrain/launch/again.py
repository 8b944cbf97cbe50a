"""Going on after a fault, perhaps with fewer ranks: what changes so that the run stays the same.

The global batch stays, and with it the steps, their records and the learning rate. Ranks share it in equal parts: so a number of ranks
is taken that divides it, the largest one there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddltrain.errors import LaunchError
from ddltrain.launch.hosts import Host


@dataclass(frozen=True)
class Batch:
    """How the global batch is shared: ranks x batch_per_rank x accumulate."""

    num_ranks: int
    batch_per_rank: int
    accumulate: int = 1

    @property
    def global_batch(self) -> int:
        return self.num_ranks * self.batch_per_rank * self.accumulate


def batch_for(before: Batch, most_ranks: int, min_ranks: int) -> Batch:
    """The same global batch on at most `most_ranks` ranks.

    A rank takes no more images at once than before, for they might not fit; it accumulates.

    Raises:
        LaunchError: too few ranks are left, or none of their numbers divides the global batch.
    """
    for num_ranks in range(min(most_ranks, before.num_ranks), max(1, min_ranks) - 1, -1):
        share, rest = divmod(before.global_batch, num_ranks)
        if rest:
            continue
        parts = (n for n in range(before.accumulate, share + 1) if share % n == 0)
        accumulate = next(n for n in parts if share // n <= before.batch_per_rank)
        return Batch(num_ranks, share // accumulate, accumulate)
    raise LaunchError(
        f"{most_ranks} ranks are left, at least {max(1, min_ranks)} are wanted (--min-ranks), and the global batch of "
        f"{before.global_batch} must be shared evenly: mend the hosts and go on with --resume"
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
