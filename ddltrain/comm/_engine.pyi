from enum import Enum

import numpy as np
from numpy.typing import NDArray

class MpiError(RuntimeError): ...
class WindowError(MpiError): ...

class DType(Enum):
    float32 = 0
    float64 = 1
    int32 = 2
    int64 = 3
    float16 = 4
    bfloat16 = 5

class ReduceOp(Enum):
    sum = 0
    avg = 1
    min = 2
    max = 3

class Wire(Enum):
    same = 0
    float16 = 1
    bfloat16 = 2

class Communicator:
    def __init__(self, comm_address: int, max_message_bytes: int) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def allreduce(self, address: int, count: int, dtype: DType, op: ReduceOp) -> None: ...
    def broadcast(self, address: int, bytes: int, root: int) -> None: ...
    def barrier(self) -> None: ...

class Window:
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Executor:
    def __init__(
        self,
        comm_address: int,
        max_message_bytes: int,
        timeout_s: float,
        uses_windows: bool,
        ranks_per_host: int,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def leaders(self) -> list[int]: ...
    @property
    def has_windows(self) -> bool: ...
    @property
    def window_error(self) -> str: ...
    @property
    def has_background(self) -> bool: ...
    @property
    def busy_s(self) -> float: ...
    def allocate(self, bytes: int) -> Window: ...
    def in_window(self, address: int, bytes: int) -> bool: ...
    def load_plan(self, rows: NDArray[np.int64], key: int, rows_ahead: int) -> int: ...
    def submit(
        self,
        plan: int,
        address: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        wire: Wire,
        residual: int,
        priority: int,
        name: str,
    ) -> int: ...
    def run(
        self,
        plan: int,
        address: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        wire: Wire,
        residual: int,
        name: str,
    ) -> None: ...
    def wait(self, number: int) -> None: ...
    def test(self, number: int) -> bool: ...
    def waiting(self) -> tuple[float, str]: ...
    def keep_spans(self, most: int) -> None: ...
    def take_spans(self) -> list[tuple[str, int, int]]: ...
    def abort(self, reason: str) -> None: ...

def mpi_library_version() -> str: ...
