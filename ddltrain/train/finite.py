"""Steps whose loss or gradients are not finite: finding them before the update, and saying where they come from.

After the all-reduce every rank holds the same sums, so all see the same and none has to ask. Which rank and layer it was has been
summed away by then. It is found by doing the step once more without the all-reduce, which gives the same numbers.
"""

import socket
from collections.abc import Callable

import torch
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.errors import DivergedError

# Of steps in a row: a run that has left the numbers does not come back.
_MOST_SKIPPED = 10
_TEXT_BYTES = 256


class FiniteCheck:
    """Looks at the sums of each step."""

    def __init__(self, model: nn.Module, engine: Engine, policy: str) -> None:
        """`policy` "stop" ends the run at such a step; "skip" leaves the model as it was before it and goes on."""
        self._model = model
        self._engine = engine
        self._skips = policy == "skip"
        self._kept: list[torch.Tensor] = []
        self._num_skipped = 0
        device = next(model.parameters()).device
        self._found, self._scale = torch.zeros(1, device=device), torch.ones(1, device=device)

    def before_step(self) -> None:
        """Keep what a forward pass changes besides the gradients, where the step may have to be undone."""
        if self._skips:
            self._kept = [buffer.detach().clone() for buffer in self._model.buffers()]

    def holds(self, sums: list[torch.Tensor]) -> bool:
        """Whether the loss and the gradients, summed over the ranks, are finite.

        Args:
            sums: float32, all on one device; they stay as they are.
        """
        # What a loss scaler runs for this, here with a scale of 1: one call for all tensors.
        self._found.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(sums, self._found, self._scale)
        if self._found.item():
            return False
        self._num_skipped = 0
        return True

    def undo(self, step: int, lr: float, repeat: Callable[[], object]) -> str:
        """Undo a step that is not finite, if that is the policy. Collective.

        Args:
            repeat: computes this rank's own gradients again.

        Returns:
            What was wrong, for the user.

        Raises:
            DivergedError: the policy is to stop, or too many steps in a row were skipped. The same on all ranks.
        """
        found = gather_texts(self._engine, self._find(repeat))
        first = next(
            (text for text in found if text),
            "on no rank when the step is done again, so the sum may overflow",
        )
        what = f"the loss or a gradient is not finite at step {step} (learning rate {lr:.4g}): {first}"
        self._num_skipped += 1
        if not self._skips or self._num_skipped > _MOST_SKIPPED:
            skipped = f", {_MOST_SKIPPED} steps in a row" if self._skips else ""
            error = DivergedError(
                f"{what}{skipped}; lower optim.lr_base or lengthen schedule.warmup_epochs; the last checkpoint is from before"
            )
            error.on_all_ranks = True
            raise error
        with torch.no_grad():
            for buffer, before in zip(self._model.buffers(), self._kept, strict=True):
                buffer.copy_(before)
        return what

    def _find(self, repeat: Callable[[], object]) -> str:
        """The first layer of this rank that is not finite; "" where all are."""
        names: list[str] = []

        def look(name: str) -> Callable[[nn.Module, object, object], None]:
            def hook(module: nn.Module, inputs: object, output: object) -> None:
                if isinstance(output, torch.Tensor) and not torch.isfinite(output).all():
                    names.append(name)

            return hook

        hooks = [
            module.register_forward_hook(look(name))
            for name, module in self._model.named_modules()
            if not list(module.children())
        ]
        try:
            repeat()
        finally:
            for handle in hooks:
                handle.remove()
        place = f"rank {self._engine.rank} on host {socket.gethostname()}"
        if names:
            return f"{place}, output of {names[0] or 'the model'}"
        # In the order of the backward pass.
        for name, parameter in reversed(list(self._model.named_parameters())):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return f"{place}, gradient of {name}"
        return ""


def gather_texts(engine: Engine, text: str) -> list[str]:
    """Every rank's text, cut to 256 bytes. Collective."""
    table = torch.zeros(engine.world_size, _TEXT_BYTES, dtype=torch.int32)
    data = text.encode()[:_TEXT_BYTES]
    table[engine.rank, : len(data)] = torch.tensor(list(data), dtype=torch.int32)
    engine.allreduce_(table)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in table.tolist()]
