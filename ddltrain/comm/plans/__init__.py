"""All-reduce algorithms as data: each is a function of topology, count and options that returns a `Plan`."""

from collections.abc import Callable

from ddltrain.comm.plans.halving_doubling import halving_doubling
from ddltrain.comm.plans.hierarchical import hierarchical
from ddltrain.comm.plans.multicolor import multicolor
from ddltrain.comm.plans.multiring import multiring
from ddltrain.comm.plans.plan import Plan
from ddltrain.comm.plans.ring import ring
from ddltrain.comm.plans.shared_memory import shared_memory
from ddltrain.comm.plans.torus2d import torus2d

PLANNERS: dict[str, Callable[..., Plan]] = {
    "ring": ring,
    "multiring": multiring,
    "multicolor": multicolor,
    "torus2d": torus2d,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
    "shared_memory": shared_memory,
}
