"""An operation under way, and the errors it can end with."""

from collections.abc import Callable

import torch

from ddltrain.errors import CommError


class Errors:
    """Turns the extension's errors into ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        from ddltrain.comm import _engine  # loaded by now, after mpi4py

        if isinstance(error, _engine.MpiError):
            raise CommError(str(error)) from None


class Handle:
    """An operation under way. Its tensors must not be touched until it is done."""

    def __init__(
        self,
        wait: Callable[[], None],
        test: Callable[[], bool],
        tensor: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """Keeps both tensors alive."""
        self._wait, self._test, self._tensor, self._residual = wait, test, tensor, residual

    def wait(self) -> torch.Tensor:
        """Return the tensor once it holds the result.

        Raises:
            CommError: ranks disagree, or one does not come.
        """
        with Errors():
            self._wait()
        return self._tensor

    def test(self) -> bool:
        """Whether the operation is done, without waiting. The result is in the tensor after `wait`."""
        with Errors():
            return self._test()
