"""Where a run stands."""

from dataclasses import dataclass


@dataclass
class Position:
    """Plain numbers, which a checkpoint holds. The sums are of the current epoch, over all ranks.

    Attributes:
        step: finished steps of the run.
        epoch: finished epochs, evaluation included.
        epoch_s: time in steps of the current epoch.
        comm_s, comm_exposed_s: of it, the time with an all-reduce of gradients under way, and the part behind backward; of this rank.
        best_top1, best_step: the best validation accuracy so far in percent, and the step that had it; -1 before there is one.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    num_images: int = 0
    epoch_s: float = 0.0
    comm_s: float = 0.0
    comm_exposed_s: float = 0.0
    best_top1: float = -1.0
    best_step: int = -1
