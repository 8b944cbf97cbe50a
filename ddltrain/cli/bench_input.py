"""Time decoding of pictures side by side: our own, Pillow and torchvision, on the same pictures and windows.

DATA is a folder of pictures or a prepared data set. Pictures lie in memory, packed for our decoder and as files for the others. Each
image is a random window (train) or the centre (eval), resized, mirrored and written to a batch in memory. ddltrain's `fast` and
`exact` are the values of `data.decode` in a recipe. DALI and FFCV take part where they can be imported, and draw windows of their own.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="a folder of pictures, or a prepared data set"
    )
    parser.add_argument(
        "--size", type=int, default=224, metavar="N", help="side of the images (default: 224)"
    )
    parser.add_argument(
        "--shorter-side", type=int, default=0, metavar="N", help="shrink the pictures first (default: not)"
    )
    parser.add_argument(
        "--pictures", type=int, default=500, metavar="N", help="at most, taken evenly (default: 500)"
    )
    parser.add_argument(
        "--threads", metavar="N,M", help="numbers of threads (default: 1, 2, 4 and so on, and all cores)"
    )
    parser.add_argument("--phases", default="train,eval", metavar="A,B", help="(default: train,eval)")
    parser.add_argument(
        "--outputs",
        default="uint8,uint8-nchw,float32,bfloat16",
        metavar="A,B",
        help="of ours: uint8, float32 or bfloat16, channels last or -nchw (default: uint8,uint8-nchw,float32,bfloat16)",
    )
    parser.add_argument(
        "-n", dest="rounds", type=int, default=7, metavar="N", help="rounds, 5 or more (default: 7)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    from ddltrain.bench.input_job import Options, run_bench

    return run_bench(
        Options(
            data=args.data,
            image_size=args.size,
            shorter_side=args.shorter_side,
            num_pictures=args.pictures,
            threads=_threads(args.threads),
            phases=args.phases.split(","),
            outputs=args.outputs.split(","),
            num_rounds=args.rounds,
            json_file=args.json,
        )
    )


def _threads(text: str | None) -> list[int]:
    """The numbers of threads to measure; raises `DataError`."""
    import os

    from ddltrain.errors import DataError

    if text is None:
        num_cores = len(os.sched_getaffinity(0))
        return sorted({1 << power for power in range(num_cores.bit_length())} | {num_cores})
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise DataError(f"--threads {text}: give whole numbers, such as 1,2,4") from error
