"""The order in which training visits records: a pure function of (seed, epoch, position).

Nothing of it needs saving. A run that goes on in mid-epoch, also on another number of ranks, computes the same order again.
"""

from dataclasses import dataclass

import numpy as np

from ddltrain.errors import DataError


@dataclass(frozen=True)
class StepPlan:
    """How an epoch of `num_records` is cut into steps, and a step into the ranks' shares.

    With last_batch "keep" every record is visited: the epoch has as many steps as full batches would need, and the records are dealt
    over them evenly, so that no step has more than `global_batch` records and none is a runt of a few (which would make a noisy update
    and starve batch normalization). Gradients are weighted by the true count. With "drop" every step has `global_batch` records, and
    what is left over is skipped, in each epoch another part.

    The cut hangs on the global batch alone: N ranks with batch b take the steps of one rank with batch N * b.

    With `accumulate` a rank's share of a step comes in so many parts, one after the other: the parts that as many ranks would take, so
    that N ranks with accumulation a see what N * a ranks see.
    """

    num_records: int
    world_size: int
    batch_per_rank: int
    last_batch: str
    accumulate: int = 1

    def __post_init__(self) -> None:
        times = f" x {self.accumulate} accumulated" if self.accumulate > 1 else ""
        if self.num_records < self.global_batch:
            raise DataError(
                f"the global batch of {self.global_batch} ({self.world_size} ranks x {self.batch_per_rank}{times}) is larger than the "
                f"{self.num_records} training images; lower train.batch_per_rank or the number of ranks"
            )

    @property
    def global_batch(self) -> int:
        return self.world_size * self.batch_per_rank * self.accumulate

    @property
    def num_steps(self) -> int:
        """Steps in an epoch, at least 1."""
        full, rest = divmod(self.num_records, self.global_batch)
        return full + (1 if rest and self.last_batch == "keep" else 0)

    def step_range(self, step: int) -> tuple[int, int]:
        """First position and the one behind the last, of step `step` in an epoch."""
        if self.last_batch == "drop":
            return step * self.global_batch, (step + 1) * self.global_batch
        return _share(0, self.num_records, step, self.num_steps)

    def rank_range(self, step: int, rank: int) -> tuple[int, int]:
        """The part of the step's range that `rank` takes. With fewer records than ranks the last ranks take none."""
        parts = self.part_ranges(step, rank)
        return parts[0][0], parts[-1][1]

    def part_ranges(self, step: int, rank: int) -> list[tuple[int, int]]:
        """The `accumulate` parts of the rank's range, in order; some may be empty."""
        num_shares = self.world_size * self.accumulate
        shares = range(rank * self.accumulate, (rank + 1) * self.accumulate)
        return [_share(*self.step_range(step), share, num_shares) for share in shares]

    def part_sizes(self, step: int, rank: int) -> list[int]:
        """Records in each part."""
        return [behind - first for first, behind in self.part_ranges(step, rank)]


def _share(start: int, stop: int, index: int, num_shares: int) -> tuple[int, int]:
    """Share `index` of a range cut into consecutive shares that differ by at most one, the larger first."""
    size, rest = divmod(stop - start, num_shares)
    first = start + index * size + min(index, rest)
    return first, first + size + (1 if index < rest else 0)


def epoch_order(num_records: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of records that epoch `epoch` visits: int64 [num_records]."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_records)
