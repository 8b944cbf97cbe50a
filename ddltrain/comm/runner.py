"""Plans and the C++ that runs them, for tensors. To be imported after mpi4py, so that both use one MPI library."""

import contextlib
import weakref

import torch

from ddltrain.comm import _engine
from ddltrain.comm.collectives import ACROSS, across, all_gather, key_of, reduce_scatter
from ddltrain.comm.handle import Errors, Handle
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.plans.plan import Plan
from ddltrain.comm.topology import Topology
from ddltrain.comm.verify import verify
from ddltrain.comm.waits import waiting
from ddltrain.comm.way import Way
from ddltrain.errors import CommError

# Between hosts: below the eager limit of the usual MPI libraries over TCP, beyond which both directions of a link hinder each other.
SEGMENT_BYTES = 32 << 10

# Inside a host: large enough that the library copies straight from one process to the other.
HOST_SEGMENT_BYTES = 256 << 10

DTYPES = {getattr(torch, name): dtype for name, dtype in _engine.DType.__members__.items()}
OPS = _engine.ReduceOp.__members__
WIRES = {None: _engine.Wire.same, "fp16": _engine.Wire.float16, "bf16": _engine.Wire.bfloat16}


def check_library() -> None:
    """Refuse to run on two MPI libraries at once.

    Raises:
        CommError: the extension was built for another MPI than mpi4py's.
    """
    from mpi4py import MPI

    built, loaded = _engine.mpi_library_version(), MPI.Get_library_version()
    if built != loaded:
        raise CommError(
            f"the extension runs on '{built.strip()}' but mpi4py on '{loaded.strip()}'; build again with MPICC set to the MPI of mpi4py"
        )


class Runner:
    """Runs planners' plans on contiguous CPU tensors; makes each plan once.

    Attributes:
        topology: which ranks share a host.
        has_windows: whether `allocate` gives memory that the ranks of a host share.
        has_background: whether operations get on while nobody waits.
    """

    def __init__(
        self,
        comm_address: int,
        max_message_bytes: int,
        segment_bytes: int | None,
        timeout_s: float,
        use_windows: bool,
        ranks_per_host: int,
        verifies: bool,
    ) -> None:
        """Collective over the communicator."""
        self._verifies = verifies
        self._communicator = _engine.Communicator(comm_address, max_message_bytes)
        self._executor = _engine.Executor(
            comm_address, max_message_bytes, timeout_s, use_windows, ranks_per_host
        )
        # MPI ends before the interpreter does: nothing may be under way by then.
        weakref.finalize(self, self._executor.abort, "the program ends")
        leaders = self._executor.leaders
        self.topology = Topology(
            tuple(
                tuple(rank for rank, own in enumerate(leaders) if own == leader)
                for leader in sorted(set(leaders))
            )
        )
        self.has_windows = self._executor.has_windows
        self.has_background = self._executor.has_background
        self.rank = self._executor.rank
        self.world_size = self.topology.world_size
        usual = HOST_SEGMENT_BYTES if len(self.topology.hosts) == 1 else SEGMENT_BYTES
        self._segment_bytes = min(segment_bytes or usual, max_message_bytes)
        self._plans: dict[tuple[object, ...], int] = {}

    def allocate(self, bytes: int) -> torch.Tensor:
        """Zeroed memory, uint8 [bytes], in a window of the host where windows can be had. Collective."""
        if not self.has_windows or bytes == 0 or self.world_size == 1:
            return torch.zeros(bytes, dtype=torch.uint8)
        memory = None
        with contextlib.suppress(_engine.WindowError):  # no room, say
            memory = self._executor.allocate(bytes)
        # All hosts or none, so that all ranks choose the same plans.
        refused = torch.tensor([memory is None], dtype=torch.int32)
        self.allreduce_by_mpi(refused, "max")
        if memory is None or refused.item():
            return torch.zeros(bytes, dtype=torch.uint8)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def in_window(self, tensor: torch.Tensor) -> bool:
        """Whether all of `tensor` lies in one window."""
        return self.has_windows and self._executor.in_window(tensor.data_ptr(), tensor.nbytes)

    def check(
        self, tensor: torch.Tensor, op: str, wire: str | None, residual: torch.Tensor | None = None
    ) -> None:
        """Refuse what no rank can reduce, before anything is sent.

        Raises:
            TypeError: dtype, layout, op, wire or residual do not fit.
        """
        if tensor.dtype not in DTYPES or not tensor.is_contiguous():
            raise TypeError(
                f"allreduce_ takes a contiguous tensor of {', '.join(map(str, DTYPES))}; this one is {tensor.dtype} with "
                f"shape {tuple(tensor.shape)} and strides {tensor.stride()}: call .contiguous() or .to(dtype) first"
            )
        if op not in OPS or wire not in WIRES:
            raise TypeError(
                f"op = {op!r} must be one of {', '.join(OPS)}, and wire = {wire!r} None, 'fp16' or 'bf16'"
            )
        if op == "avg" and not tensor.is_floating_point():
            raise TypeError(f"{tensor.dtype} cannot be averaged: sum it and divide")
        if wire and tensor.dtype != torch.float32:
            raise TypeError(f"only float32 can travel as {wire}, not {tensor.dtype}")
        if residual is not None:
            self._check_residual(tensor, op, residual)

    def _check_residual(self, tensor: torch.Tensor, op: str, residual: torch.Tensor) -> None:
        if op != "sum" or tensor.dtype != torch.float32:
            raise TypeError(f"a residual goes with sums of float32, not with op = {op!r} of {tensor.dtype}")
        alike = residual.dtype == tensor.dtype and residual.shape == tensor.shape
        if not (alike and residual.is_cpu and residual.is_contiguous()):
            raise TypeError(
                f"the residual must be a contiguous CPU tensor like the one to sum, {tensor.dtype} {tuple(tensor.shape)}; it is "
                f"{residual.dtype} {tuple(residual.shape)} on {residual.device}"
            )

    def allreduce_by_mpi(self, tensor: torch.Tensor, op: str) -> None:
        """The MPI library's own all-reduce. Collective."""
        if op == "avg":
            tensor.div_(self.world_size)
        is_half = tensor.element_size() == 2
        wide = tensor.float() if is_half else tensor
        reduction = OPS["sum" if op == "avg" else op]
        with Errors(), waiting("an all-reduce of the MPI library"):
            self._communicator.allreduce(wide.data_ptr(), wide.numel(), DTYPES[wide.dtype], reduction)
        if is_half:
            tensor.copy_(wide)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Replace a contiguous CPU tensor by that of rank `root`. Collective."""
        with Errors(), waiting(f"a broadcast from rank {root}"):
            self._communicator.broadcast(tensor.data_ptr(), tensor.nbytes, root)

    def waiting(self) -> tuple[float, str]:
        """How long the operations under way have not got on, in seconds, and what the first waits for. From any thread."""
        return self._executor.waiting()

    def barrier(self) -> None:
        """Return once every rank has called it. Collective."""
        with Errors(), waiting("a barrier"):
            self._communicator.barrier()

    def run(
        self,
        tensor: torch.Tensor,
        algorithm: str,
        in_window: bool,
        op: str,
        wire: str | None,
        residual: torch.Tensor | None,
        name: str,
    ) -> None:
        """Run `algorithm` on `tensor`, which lies `in_window` or not, and wait for it. Collective."""
        arguments = self._arguments(tensor, algorithm, in_window, op, wire, residual)
        with Errors():
            self._executor.run(*arguments, name)

    def submit(
        self,
        tensor: torch.Tensor,
        algorithm: str,
        in_window: bool,
        op: str,
        wire: str | None,
        residual: torch.Tensor | None,
        name: str,
        priority: int,
    ) -> Handle:
        """Start `algorithm` on `tensor`. Collective."""
        arguments = self._arguments(tensor, algorithm, in_window, op, wire, residual)
        with Errors():
            number = self._executor.submit(*arguments, priority, name)
        return Handle(
            lambda: self._executor.wait(number), lambda: self._executor.test(number), tensor, residual
        )

    def way(self, tensor: torch.Tensor, algorithm: str, in_window: bool, wire: str | None) -> Way:
        """What `algorithm` would do with a tensor."""
        if self.world_size == 1:
            return Way("none", "nothing is sent: one rank", in_window)
        if algorithm == "mpi":
            return Way("mpi", "the MPI library's own all-reduce", in_window, None, None)
        wire = self._travels_as(algorithm, in_window, wire)
        element_bytes = 2 if wire else tensor.element_size()
        plan = self._make_plan(algorithm, tensor.numel(), element_bytes, in_window, wire is not None)
        sent_bytes = element_bytes * max(map(plan.sent_elements, range(self.world_size)))
        return Way(algorithm, plan.description, in_window, plan.num_rounds, sent_bytes, wire)

    @property
    def busy_s(self) -> float:
        """The time so far, in seconds, with an operation of the executor under way."""
        return self._executor.busy_s

    def keep_spans(self, most: int) -> None:
        """From now on keep when each operation of the executor was under way, for so many of them."""
        self._executor.keep_spans(most)

    def take_spans(self) -> list[tuple[str, int, int]]:
        """Name, start and end of each operation kept so far, in nanoseconds of `time.perf_counter_ns`."""
        return self._executor.take_spans()

    def compare(
        self, result: torch.Tensor, before: torch.Tensor, op: str, wire: str | None, what: str
    ) -> None:
        """Sum `before` by the MPI library, and hold `result` against it. Collective.

        Raises:
            CommError: they differ by more than rounding does.
        """
        self.allreduce_by_mpi(before, op)
        digits = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
        tolerance = 5e-2 if wire else digits.get(result.dtype, 0.0)
        ours, theirs = result.double(), before.double()
        scale = float(theirs.abs().max())
        if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            worst = float((ours - theirs).abs().max())
            raise CommError(
                f"rank {self.rank}: the result by {what} differs from that of the MPI library by up to {worst:.3g}"
            )

    def _travels_as(self, algorithm: str, in_window: bool, wire: str | None) -> str | None:
        one_host = len(self.topology.hosts) == 1
        nothing_travels = one_host and in_window and algorithm in ("shared_memory", "hierarchical")
        return None if nothing_travels else wire

    def _arguments(
        self,
        tensor: torch.Tensor,
        algorithm: str,
        in_window: bool,
        op: str,
        wire: str | None,
        residual: torch.Tensor | None,
    ) -> tuple[int, int, int, _engine.DType, _engine.ReduceOp, _engine.Wire, int]:
        """What the executor takes."""
        wire = self._travels_as(algorithm, in_window, wire)
        plan = self._plan(algorithm, tensor, in_window, wire)
        address = 0 if wire is None or residual is None else residual.data_ptr()
        count, dtype = tensor.numel(), DTYPES[tensor.dtype]
        return plan, tensor.data_ptr(), count, dtype, OPS[op], WIRES[wire], address

    def _plan(self, algorithm: str, tensor: torch.Tensor, in_window: bool, wire: str | None) -> int:
        """The executor's id of the plan for tensors of this size."""
        count, element_bytes = tensor.numel(), 2 if wire else tensor.element_size()
        wanted = (algorithm, count, element_bytes, in_window, wire is not None)
        if wanted not in self._plans:
            plan = self._make_plan(*wanted)
            if self._verifies and algorithm in PLANNERS:
                verify(plan)
            key = key_of(plan, self._segment_bytes)
            self._plans[wanted] = self._executor.load_plan(plan.ops_of(self.rank), key, plan.rows_ahead)
        return self._plans[wanted]

    def _make_plan(
        self, algorithm: str, count: int, element_bytes: int, in_window: bool, has_wire: bool
    ) -> Plan:
        segment_count = max(1, self._segment_bytes // element_bytes)
        one_host = len(self.topology.hosts) == 1
        if algorithm == "reduce_scatter":
            return reduce_scatter(self.topology, count, segment_count, in_window and one_host)
        if algorithm == "all_gather":
            return all_gather(self.topology, count, segment_count, in_window and one_host)
        if algorithm == ACROSS:
            return across(self.topology, count, segment_count)
        if algorithm == "shared_memory":
            if not in_window:
                raise CommError("shared_memory needs tensors that lie in memory from Engine.allocate")
            return PLANNERS[algorithm](self.topology, count, max(1, count))
        if algorithm == "hierarchical":
            return PLANNERS[algorithm](self.topology, count, segment_count, windows=in_window)
        if algorithm == "halving_doubling" and has_wire:
            # In recursive doubling several ranks round the same sum: again and again, and each would keep the same residual.
            return PLANNERS[algorithm](self.topology, count, segment_count, doubling_count=0)
        return PLANNERS[algorithm](self.topology, count, segment_count)
