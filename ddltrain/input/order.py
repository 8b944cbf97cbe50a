"""The order in which records are visited: a pure function of (seed, epoch, position).

    an epoch's order    | 7 2 9 0 | 4 1 8 6 | 3 5 ...     a permutation of the records, the same on all ranks
    steps               |    0    |    1    |    2        cut evenly; the cut hangs on the global batch alone
    ranks in a step     | 0  | 1  | 0  | 1  | 0  | 1      each takes its consecutive part

Nothing of it needs saving. A run that goes on in mid-epoch, also on another number of ranks, computes the same order again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError

Ints = NDArray[np.int64]

# Evaluation batches are cut at the same places whatever the number of ranks, so that no image's result can depend on it.
EVAL_BATCH_IMAGES = 64


@dataclass(frozen=True)
class Visits:
    """The positions that one rank visits, batch by batch: `first` up to but not including `stop`, int64 [num_batches].

    `step_images` counts the images of the same step on all ranks, int64 [num_batches].
    """

    first: Ints
    stop: Ints
    step_images: Ints

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.first)

    def edges(self) -> Ints:
        """Where each batch begins and ends among all that the rank visits: int64 [num_batches + 1]."""
        return _edges(self.stop - self.first)

    def positions(self) -> Ints:
        """The positions in the order of the visits, int64."""
        sizes = self.stop - self.first
        return np.repeat(self.first - _edges(sizes)[:-1], sizes) + np.arange(sizes.sum())


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

    A global batch that is `given` is shared by any number of ranks, in more parts where one would have more than `batch_per_rank`
    records; with 0 it is what the ranks take together.
    """

    num_records: int
    world_size: int
    batch_per_rank: int
    last_batch: str
    accumulate: int = 1
    given: int = 0

    def __post_init__(self) -> None:
        times = f" x {self.accumulate} accumulated" if self.accumulate > 1 else ""
        source = f"({self.world_size} ranks x {self.batch_per_rank}{times}) "
        lower = "train.global_batch" if self.given else "train.batch_per_rank or the number of ranks"
        if self.num_records < self.global_batch:
            raise DataError(
                f"the global batch of {self.global_batch} {'' if self.given else source}is larger than the "
                f"{self.num_records} training images; lower {lower}"
            )

    @property
    def global_batch(self) -> int:
        return self.given or self.world_size * self.batch_per_rank * self.accumulate

    @property
    def num_parts(self) -> int:
        """Parts of a rank's share of a step."""
        share = -(-self.global_batch // self.world_size)
        return max(self.accumulate, -(-share // self.batch_per_rank))

    @property
    def largest_share(self) -> int:
        """Records that a rank has in a step, at most."""
        return self.num_parts * -(-self.global_batch // self._num_shares)

    @property
    def num_steps(self) -> int:
        """Steps in an epoch, at least 1."""
        full, rest = divmod(self.num_records, self.global_batch)
        return full + (1 if rest and self.last_batch == "keep" else 0)

    def step_edges(self) -> Ints:
        """Where each step begins, and the last one ends: int64 [num_steps + 1]."""
        steps = np.arange(self.num_steps + 1)
        if self.last_batch == "drop":
            return steps * self.global_batch
        return _cut(np.array(0), np.array(self.num_records), self.num_steps, steps)

    def rank_edges(self) -> Ints:
        """Where each rank's part of each step begins, and the last one's ends: int64 [num_steps, world_size + 1].

        With fewer records in a step than ranks, the last ranks have none.
        """
        steps = self.step_edges()[:, None]
        shares = np.arange(self.world_size + 1) * self.num_parts
        return _cut(steps[:-1], steps[1:], self._num_shares, shares)

    def visits(self, rank: int) -> Visits:
        """What `rank` visits in an epoch."""
        steps = self.step_edges()
        first, stop = (
            _cut(steps[:-1], steps[1:], self._num_shares, np.array(edge * self.num_parts))
            for edge in (rank, rank + 1)
        )
        return Visits(first, stop, np.diff(steps))

    def part_sizes(self, step: int, rank: int) -> list[int]:
        """Records in each of the `num_parts` parts of the rank's share of a step, in order; some may be empty."""
        start, stop = self.step_edges()[step : step + 2]
        shares = np.arange(rank * self.num_parts, (rank + 1) * self.num_parts + 1)
        sizes: list[int] = np.diff(_cut(start, stop, self._num_shares, shares)).tolist()
        return sizes

    @property
    def _num_shares(self) -> int:
        return self.world_size * self.num_parts


def eval_visits(num_records: int, rank: int, world_size: int) -> Visits:
    """What `rank` evaluates: every world_size-th of the fixed batches; nothing where there are fewer batches than ranks."""
    first = np.arange(rank * EVAL_BATCH_IMAGES, num_records, world_size * EVAL_BATCH_IMAGES)
    stop = np.minimum(first + EVAL_BATCH_IMAGES, num_records)
    return Visits(first, stop, stop - first)


def epoch_order(num_records: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """The permutation of records that epoch `epoch` visits: int32 [num_records]."""
    order = np.arange(num_records, dtype=np.int32)  # half the memory of the usual integers
    np.random.Generator(np.random.Philox(key=[seed, epoch])).shuffle(order)
    return order


def _cut(start: Ints, stop: Ints, num_shares: int, index: Ints) -> Ints:
    """Where share `index` begins in a range cut into consecutive shares that differ by at most one, the larger first."""
    size, rest = np.divmod(stop - start, num_shares)
    return np.asarray(start + index * size + np.minimum(index, rest))


def _edges(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
