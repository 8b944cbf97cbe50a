"""Show, check or draw how an all-reduce runs; starts no ranks.

examples:
  ddltrain plan show all --hosts 4x2           all algorithms on 4 hosts of 2 ranks: rounds, bytes, simulated time
  ddltrain plan verify torus2d --ranks 12      prove that the plan is an all-reduce
  ddltrain plan draw multicolor --ranks 8      write multicolor.svg
"""

import argparse
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError

if TYPE_CHECKING:
    from ddltrain.comm.plans.plan import Plan

ALL = "all"
_OPTIONS = (
    "of a planner: colors=4, arity=4, color_count=1024, rings=4, dims=2x3x4, exchanges=ring,direct, windows=yes, across=multicolor, "
    "doubling_count=0"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("action", choices=["show", "verify", "draw"])
    parser.add_argument("algorithm", help=f"a planner's name, or '{ALL}'")
    parser.add_argument(
        "--ranks", type=int, help="ranks, each on a host of its own (shared_memory: all on one)"
    )
    parser.add_argument("--hosts", help="4x2 (4 hosts of 2 ranks), or the ranks of each host: 2,2,1")
    parser.add_argument(
        "--count", type=int, help="elements of 4 bytes (draw: 24000; else 6553600, which are 25 MiB)"
    )
    parser.add_argument(
        "--segment", type=int, help="elements of a message at most (draw: no limit; else 8192)"
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=_OPTIONS)
    parser.add_argument("--out", type=Path, help="draw: the SVG file to write (ALGORITHM.svg)")
    parser.add_argument(
        "--alpha", type=float, default=50.0, help="show: latency between hosts, in us (%(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=1000.0, help="show: of a host's link, in Mbit/s (%(default)s)"
    )
    parser.add_argument("--memory", type=float, default=10.0, help="show: of a host, in GB/s (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Do what the command line says. Returns the exit status.

    Raises:
        CommError: an algorithm, an option or a topology that does not exist.
    """
    from ddltrain.comm.plans import PLANNERS

    if args.algorithm != ALL and args.algorithm not in PLANNERS:
        raise CommError(f"no algorithm '{args.algorithm}': take one of {', '.join(PLANNERS)}, or {ALL}")
    names = [args.algorithm] if args.algorithm != ALL else list(PLANNERS)
    if args.algorithm == ALL and len(_topology(args, "").hosts) > 1:
        names.remove("shared_memory")
    plans = [_plan(args, name) for name in names]
    {"show": _show, "verify": _verify, "draw": _draw}[args.action](args, plans)
    return 0


def _topology(args: argparse.Namespace, algorithm: str) -> Topology:
    """The hosts that the command line tells of."""
    if args.hosts is None and args.ranks is None:
        raise CommError("say how many ranks there are: --ranks 8, --hosts 4x2 or --hosts 2,2,1")
    sizes: tuple[int, ...]
    if args.hosts is None:
        sizes = (args.ranks,) if algorithm == "shared_memory" else (1,) * args.ranks
    else:
        try:
            if "x" in args.hosts:
                num_hosts, size = map(int, args.hosts.split("x"))
                sizes = (size,) * num_hosts
            else:
                sizes = tuple(map(int, args.hosts.split(",")))
        except ValueError:
            raise CommError(f"--hosts '{args.hosts}' is neither like 4x2 nor like 2,2,1") from None
    if not sizes or min(sizes) < 1:
        raise CommError(
            "every host needs a rank, and there must be a host: --ranks 8, --hosts 4x2 or --hosts 2,2,1"
        )
    if args.ranks not in (None, sum(sizes)):
        raise CommError(
            f"--hosts {args.hosts} are {sum(sizes)} ranks, but --ranks says {args.ranks}: leave one out"
        )
    return Topology.of_sizes(sizes)


def _plan(args: argparse.Namespace, algorithm: str) -> "Plan":
    from ddltrain.comm.plans import PLANNERS

    planner = PLANNERS[algorithm]
    known = list(inspect.signature(planner).parameters)[3:]
    options = {}
    for word in args.option:
        key, _, value = word.partition("=")
        if key in known:
            options[key] = _option_value(word, key, value)
        elif args.algorithm != ALL:
            raise CommError(f"{algorithm} has no option '{key}'; it has {', '.join(known) or 'none'}")
    draws = args.action == "draw"
    count = args.count if args.count is not None else (24_000 if draws else 6_553_600)
    segment_count = args.segment if args.segment is not None else (max(count, 1) if draws else 8192)
    return planner(_topology(args, algorithm), count, segment_count, **options)


def _option_value(word: str, key: str, value: str) -> Any:
    """The value of KEY=VALUE as the planner takes it."""
    try:
        if key == "dims":
            return tuple(map(int, value.split("x")))
        if key == "exchanges":
            return tuple(value.split(","))
        if key == "windows":
            return {"yes": True, "no": False}[value]
        return value if key == "across" else int(value)
    except (ValueError, KeyError):
        raise CommError(f"--option {word} is not like {_OPTIONS.partition(': ')[2]}") from None


def _show(args: argparse.Namespace, plans: "list[Plan]") -> None:
    from ddltrain.comm.simulate import Cost, floor_s, simulate

    if min(args.rate, args.memory) <= 0 or args.alpha < 0:
        raise CommError("--rate and --memory must be positive, and --alpha not negative")
    cost = Cost(args.alpha * 1e-6, args.rate * 1e6 / 8, args.memory * 1e9)
    plan = plans[0]
    print(
        f"{plan.count * cost.element_bytes} bytes on {plan.world_size} ranks, {len(plan.topology.hosts)} hosts; "
        f"links {args.rate:g} Mbit/s, {args.alpha:g} us, memory {args.memory:g} GB/s; no all-reduce needs less than "
        f"{1000 * floor_s(plan, cost):.4g} ms"
    )
    print(f"{'algorithm':18} {'rounds':>6} {'sent/data':>9} {'rows':>7} {'ms':>10} {'x floor':>8}  plan")
    for plan in plans:
        time_s, least_s = simulate(plan, cost), floor_s(plan, cost)
        sent = max(map(plan.sent_elements, range(plan.world_size))) / max(plan.count, 1)
        num_rows = max(len(plan.ops_of(rank)) for rank in range(plan.world_size))
        ratio = f"{time_s / least_s:8.3f}" if least_s else " " * 8
        print(
            f"{plan.algorithm:18} {plan.num_rounds:6} {sent:9.3f} {num_rows:7} {1000 * time_s:10.4g} {ratio}  {plan.description}"
        )


def _verify(args: argparse.Namespace, plans: "list[Plan]") -> None:
    from ddltrain.comm.verify import verify

    for plan in plans:
        verify(plan)
        print(
            f"{plan.algorithm}: {plan.description}, {plan.count} elements: sums, matching, order, bytes and rounds hold"
        )


def _draw(args: argparse.Namespace, plans: "list[Plan]") -> None:
    from ddltrain.comm.draw import draw

    if args.out is not None and len(plans) > 1:
        raise CommError("--out names one file: draw one algorithm, or leave it out")
    for plan in plans:
        path = args.out or Path(f"{plan.algorithm}.svg")
        try:
            path.write_text(draw(plan))
        except OSError as error:
            raise CommError(f"cannot write {path}: {error.strerror}") from None
        print(f"wrote {path}: {plan.description}, {plan.num_rounds} rounds")
