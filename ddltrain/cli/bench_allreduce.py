"""Time all-reduces side by side: our own, MPI's and Gloo's, against what links and memory allow.

Every algorithm is timed once a round, in turn; the figure is the median over rounds of the slowest rank's time. Results are checked.
algbw is the size over the time; busbw is algbw 2(p-1)/p (p ranks), what a rank's link carries at least; ratio is the time over the floor.

With --overlap, 4 all-reduces of the last size run beside matrix products of one thread: hidden is the part of the shorter of the two that
costs no time, and processor the processor time that the all-reduces took.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddltrain.cli.ranks import add_ranks_argument, run_on_ranks, start_again_on_ranks, starts_ranks
from ddltrain.train.stop import StopRequest

if TYPE_CHECKING:
    from ddltrain.bench.job import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", dest="begin", default="4K", metavar="SIZE", help="the first size (default: 4K)")
    parser.add_argument(
        "-e", dest="end", default="100M", metavar="SIZE", help="the last size (default: 100M)"
    )
    parser.add_argument(
        "-f", dest="factor", type=int, default=4, metavar="N", help="between sizes (default: 4)"
    )
    parser.add_argument(
        "-w", dest="warmups", type=int, default=2, metavar="N", help="calls before timing (default: 2)"
    )
    parser.add_argument(
        "-n", dest="rounds", type=int, default=7, metavar="N", help="rounds, 5 or more (default: 7)"
    )
    parser.add_argument(
        "--algorithms",
        default="all",
        metavar="A,B",
        help="mpi, gloo, auto, ring and so on, ring/bf16 for float32 sent as bfloat16, or all (default: all)",
    )
    parser.add_argument("--dtypes", default="float32", metavar="D,E", help="dtypes (default: float32)")
    parser.add_argument("--op", default="sum", choices=("sum", "avg", "min", "max"), help="(default: sum)")
    parser.add_argument(
        "--rate",
        metavar="RATE",
        help="of a host's links in each direction, such as 10gbit, for the floor (default: measured, or as the emulated cluster says)",
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="for the floor (default: the host names)")
    parser.add_argument(
        "--overlap", action="store_true", help="measure how much of the communication hides behind computing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw times over sizes there")
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from_here = starts_ranks(args.ranks)

    from ddltrain.bench.job import check_options, run_bench

    options = _options(args)
    if from_here:
        check_options(options)
        return start_again_on_ranks(args.ranks, ["bench-allreduce", *_words(args)])
    if args.overlap:
        from ddltrain.bench.overlap import run_overlap

        return run_on_ranks(lambda world, console: run_overlap(options, world, console))
    should_stop = StopRequest()
    return run_on_ranks(lambda world, console: run_bench(options, world, console, should_stop))


def _options(args: argparse.Namespace) -> "Options":
    from ddltrain.bench.contenders import choose
    from ddltrain.bench.job import Options
    from ddltrain.bench.sizes import parse_size, sizes_between

    return Options(
        sizes_bytes=sizes_between(parse_size(args.begin), parse_size(args.end), args.factor),
        algorithms=choose(args.algorithms),
        dtypes=[name.strip() for name in args.dtypes.split(",")],
        op=args.op,
        num_warmups=args.warmups,
        num_rounds=args.rounds,
        rate=args.rate,
        num_hosts=args.hosts,
        json_file=args.json,
        plot_file=args.plot,
    )


def _words(args: argparse.Namespace) -> list[str]:
    """The arguments again, for the ranks that this process starts."""
    words = ["-b", args.begin, "-e", args.end, "-f", str(args.factor)]
    words += ["-w", str(args.warmups), "-n", str(args.rounds), "--op", args.op]
    words += ["--algorithms", args.algorithms, "--dtypes", args.dtypes]
    words += ["--overlap"] if args.overlap else []
    for flag in ("rate", "hosts", "json", "plot"):
        if (value := getattr(args, flag)) is not None:
            words += [f"--{flag}", str(value)]
    return words
