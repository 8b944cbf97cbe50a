"""The command `ddltrain` and its subcommands. Help needs neither MPI nor torch: commands import what they use when they run."""

import argparse
import sys
from collections.abc import Sequence

from ddltrain import __version__
from ddltrain.cli import (
    bench_allreduce,
    bench_input,
    bench_train,
    cluster,
    compare,
    doctor,
    evaluate,
    extract,
    launch,
    plan,
    prepare,
    train,
    verify,
)
from ddltrain.errors import EXIT_KILLED, EXIT_USER_ERROR, DdltrainError

_COMMANDS = {
    "prepare": prepare,
    "verify": verify,
    "extract": extract,
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "plan": plan,
    "cluster": cluster,
    "bench-allreduce": bench_allreduce,
    "bench-input": bench_input,
    "bench-train": bench_train,
    "doctor": doctor,
    "launch": launch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are those behind the program's name. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="ddltrain",
        description="Trains ResNets to classify images, from one machine to as many as MPI can reach.",
        epilog="First `ddltrain prepare SOURCE OUT`, then `ddltrain train RECIPE data=OUT`, then `ddltrain evaluate RUN`.",
    )
    parser.add_argument("--version", action="version", version=f"ddltrain {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        doc = (command.__doc__ or "").strip()
        subparser = commands.add_parser(
            name,
            help=doc.splitlines()[0],
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    args, rest = parser.parse_known_args(arguments)
    # argparse takes "key=value" only in one run; people also write them behind flags.
    overrides = (
        [word for word in rest if "=" in word and not word.startswith("-")] if "overrides" in args else []
    )
    if len(overrides) < len(rest):
        unknown = next(word for word in rest if word not in overrides)
        hint = (
            "" if "overrides" not in args else "; values of a recipe are given as train.epochs=3, data=PATH"
        )
        parser.error(f"unknown argument {unknown}{hint} (see ddltrain {args.command} -h)")
    if overrides:
        args.overrides = [*args.overrides, *overrides]
    try:
        status: int = args.run(args)
    except DdltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("stopped before anything was started", file=sys.stderr)
        return EXIT_KILLED
    return status
