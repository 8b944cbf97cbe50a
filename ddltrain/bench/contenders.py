"""The all-reduces that are measured side by side."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not by name

from ddltrain.bench.floors import gloo_interfaces, own_address
from ddltrain.comm.engine import Engine
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.world import World
from ddltrain.errors import CommError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
WIRES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BASELINES = ("mpi", "gloo")
OWN = ("auto", *PLANNERS)

# Called with source and target of equal shape; both are the same tensor when the operation is in place.
Call = Callable[[torch.Tensor, torch.Tensor], None]
# What to call for (count, dtype, op); None where the contender does not offer it.
Setup = Callable[[int, torch.dtype, str], Call | None]


@dataclass(frozen=True)
class Contender:
    """One all-reduce.

    Attributes:
        setup: gives what to time. Both it and that are collective.
        in_window: it is at its best in memory that the ranks of a host share.
        wire: the dtype in which it sends, where that is not the tensor's.
    """

    name: str
    setup: Setup
    in_window: bool = False
    wire: torch.dtype | None = None

    def wire_bytes(self, size_bytes: int, dtype: torch.dtype) -> int:
        """What `size_bytes` of `dtype` are between hosts."""
        return size_bytes * (self.wire or dtype).itemsize // dtype.itemsize


def choose(wanted: str) -> list[str]:
    """The names of the contenders to measure.

    Args:
        wanted: "all", or names separated by commas. An own algorithm may end in the dtype in which it sends, such as "ring/bf16".

    Raises:
        CommError: an unknown name.
    """
    if wanted == "all":
        return [*BASELINES, *OWN]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    known = {*BASELINES, *OWN, *(f"{name}/{wire}" for name in OWN for wire in WIRES)}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise CommError(
            f"--algorithms {wanted}: no algorithm {', '.join(unknown) or 'given'}; there are {', '.join((*BASELINES, *OWN))}, and "
            f"those behind gloo with /{' or /'.join(WIRES)} for the dtype in which they send float32"
        )
    return list(dict.fromkeys(names))


def own(engine: Engine, name: str) -> Contender:
    """One of the engine's algorithms."""
    algorithm, _, wire = name.partition("/")

    def setup(count: int, dtype: torch.dtype, op: str) -> Call | None:
        several_hosts = len(engine.topology.hosts) > 1
        if (
            (op == "avg" and not dtype.is_floating_point)
            or (wire and dtype != torch.float32)
            or (algorithm == "shared_memory" and several_hosts)
        ):
            return None

        def call(source: torch.Tensor, target: torch.Tensor) -> None:
            if source is not target:
                target.copy_(source)
            engine.allreduce_(target, op, wire or None, algorithm)

        return call

    return Contender(name, setup, in_window=True, wire=WIRES[wire] if wire else None)


def mpi(world: World) -> Contender:
    """MPI_Allreduce of the library, by mpi4py."""
    from mpi4py import MPI

    ops = {"sum": MPI.SUM, "avg": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}

    def call(op: str, source: torch.Tensor, target: torch.Tensor) -> None:
        send = MPI.IN_PLACE if source is target else source.numpy()
        world.comm.Allreduce(send, target.numpy(), ops[op])
        if op == "avg":
            target.div_(world.world_size)

    def setup(count: int, dtype: torch.dtype, op: str) -> Call | None:
        if dtype in (torch.float16, torch.bfloat16) or (op == "avg" and not dtype.is_floating_point):
            return None
        return partial(call, op)

    return Contender("mpi", setup)


def gloo(world: World, num_hosts: int) -> Contender:
    """torch.distributed's Gloo over TCP. Collective: connects all ranks."""
    interfaces = gloo_interfaces(num_hosts)
    if interfaces:
        os.environ["GLOO_SOCKET_IFNAME"] = interfaces
    store = _connect(world, own_address(interfaces, num_hosts))
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.world_size)
    ops = {
        "sum": dist.ReduceOp.SUM,
        "avg": dist.ReduceOp.SUM,
        "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX,
    }

    def call(op: str, source: torch.Tensor, target: torch.Tensor) -> None:
        if source is not target:
            target.copy_(source)
        dist.all_reduce(target, ops[op])
        if op == "avg":
            target.div_(world.world_size)

    def setup(count: int, dtype: torch.dtype, op: str) -> Call | None:
        return None if op == "avg" and not dtype.is_floating_point else partial(call, op)

    return Contender("gloo", setup)


def _connect(world: World, own: str) -> TCPStore:
    """The meeting point of all ranks, at rank 0's address. Collective."""
    wait = timedelta(seconds=60)
    if world.rank == 0:
        store = TCPStore(own, 0, is_master=True, wait_for_workers=False, timeout=wait)
        world.comm.bcast((own, store.port))
        return store
    address, port = world.comm.bcast(None)
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=wait)
