"""The input benchmark, from options to the table."""

import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ddltrain.bench import input_routes as routes
from ddltrain.bench.input_peers import PeerRoute, open_peers
from ddltrain.bench.input_pictures import Pictures, read_pictures
from ddltrain.bench.input_routes import Case, Route
from ddltrain.errors import DataError
from ddltrain.input.decode import BatchDecoder, Sampling

MIN_ROUNDS = 5
PHASES = ("train", "eval")
MODES = ("fast", "exact")
OUTPUTS = {
    "uint8": ("uint8", True),
    "uint8-nchw": ("uint8", False),
    "float32": ("float32", True),
    "float32-nchw": ("float32", False),
    "bfloat16": ("bfloat16", True),
    "bfloat16-nchw": ("bfloat16", False),
}
_EQUAL_DB = 99  # said of images that are equal
_ROUND_S = 0.2  # quick routes are repeated within a round until it takes about this long


@dataclass(frozen=True)
class Options:
    """What to measure; see the command's help."""

    data: Path
    image_size: int
    shorter_side: int
    num_pictures: int
    threads: list[int]
    phases: list[str]
    outputs: list[str]
    num_rounds: int
    json_file: Path | None


@dataclass(frozen=True)
class Row:
    """One figure, as it goes into the JSON file."""

    route: str
    mode: str
    phase: str
    threads: int
    output: str
    images_per_s: float


def run_bench(options: Options) -> int:
    """Measure, print the table and write the file."""
    check_options(options)
    torch.set_num_threads(1)  # the benchmark's own threads are enough
    pictures = read_pictures(options.data, options.num_pictures, options.shorter_side)
    print(pictures.describe(), *(f"left out: {reason}" for reason in pictures.left_out), sep="\n")
    samplings = routes.samplings(options.image_size)
    print(f"difference to Pillow: {describe_difference(pictures, samplings['train'])}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        peers, missing = open_peers(pictures, folder, max(options.threads))
        for reason in missing:
            print(f"left out: {reason}")
        print(f"images per second, medians of {options.num_rounds} rounds; each route in turn in every round")
        cases = dict(_cases(options, pictures, samplings, peers, stack))
        rows = time_cases(cases, len(pictures), options.num_rounds)
    print("\n".join(table(rows)))
    if options.json_file:
        facts = {
            "pictures": pictures.describe(),
            "rounds": options.num_rounds,
            "image_size": options.image_size,
        }
        options.json_file.write_text(
            json.dumps(facts | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )
    return 0


def check_options(options: Options) -> None:
    """Checks what a user may get wrong; raises `DataError`."""
    for flag, values, known in (
        ("--phases", options.phases, PHASES),
        ("--outputs", options.outputs, tuple(OUTPUTS)),
    ):
        if unknown := [value for value in values if value not in known]:
            raise DataError(f"{flag}: no {', '.join(unknown)}; there are {', '.join(known)}")
    if options.num_rounds < MIN_ROUNDS:
        raise DataError(f"-n takes {MIN_ROUNDS} or more (medians of fewer say little)")
    if (
        min(options.threads) < 1
        or options.num_pictures < 1
        or options.image_size < 1
        or options.shorter_side < 0
    ):
        raise DataError("--threads, --pictures and --size take 1 or more, --shorter-side 0 or more")
    if options.json_file and not options.json_file.resolve().parent.is_dir():
        raise DataError(f"{options.json_file}: its folder does not exist; make it first")


def describe_difference(pictures: Pictures, sampling: Sampling) -> str:
    """How far our pixels are from Pillow's on the same windows."""
    wanted = np.stack(
        [
            routes.pillow_image(file, sampling, sampling.draw(*shape, routes.SEED, 0, place))
            for place, (file, shape) in enumerate(zip(pictures.files, pictures.shapes, strict=True))
        ]
    )
    words = []
    for mode in MODES:
        images = replace(sampling, mode=mode).empty_batch(len(pictures))
        records = np.arange(len(pictures))
        with BatchDecoder(1) as decoder:
            decoder.submit(
                *(pictures.block, pictures.starts, pictures.sizes, records),
                *(replace(sampling, mode=mode), routes.SEED, 0, images),
            ).wait()
        errors = images.permute(0, 2, 3, 1).numpy().astype(np.int16) - wanted
        squares = (errors.astype(np.float32) ** 2).mean(axis=(1, 2, 3))
        psnr = 10 * np.log10(255**2 / np.maximum(squares, 255**2 / 10 ** (_EQUAL_DB / 10)))
        words.append(f"{mode} mean PSNR {psnr.mean():.1f} dB, at most {np.abs(errors).max()} levels")
    return "; ".join(words)


def _cases(
    options: Options,
    pictures: Pictures,
    samplings: dict[str, Sampling],
    peers: dict[str, PeerRoute],
    stack: ExitStack,
) -> Iterator[tuple[Case, Route]]:
    for threads in options.threads:
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        decoder = stack.enter_context(BatchDecoder(threads))
        for phase in options.phases:
            sampling = samplings[phase]
            yield (
                Case("pillow", "", phase, threads, "uint8"),
                routes.pillow(pictures, sampling, pool, threads),
            )
            yield (
                Case("torchvision", "", phase, threads, "uint8"),
                routes.torchvision(pictures, sampling, pool, threads),
            )
            for name, make in peers.items():
                yield Case(name, "", phase, threads, "uint8"), make(sampling, threads)
            for mode in MODES:
                for name in options.outputs:
                    output, channels_last = OUTPUTS[name]
                    ours = replace(sampling, mode=mode, output=output, channels_last=channels_last)
                    yield Case("ddltrain", mode, phase, threads, name), routes.own(pictures, ours, decoder)


def time_cases(cases: dict[Case, Route], num_images: int, num_rounds: int) -> list[Row]:
    """Time all cases in turn, round by round, so that a busy moment of the machine hits all of them."""
    repeats = {}
    for case, run in cases.items():
        run(0)  # memory and caches are warm from here on
        start_s = time.perf_counter()
        run(0)
        repeats[case] = max(1, round(_ROUND_S / (time.perf_counter() - start_s)))
    rates: dict[Case, list[float]] = {case: [] for case in cases}
    for number in range(num_rounds):
        for case, run in cases.items():
            start_s = time.perf_counter()
            for repeat in range(repeats[case]):
                run(number * repeats[case] + repeat)
            rates[case].append(num_images * repeats[case] / (time.perf_counter() - start_s))
    return [Row(**asdict(case), images_per_s=statistics.median(rates[case])) for case in cases]


def table(rows: list[Row]) -> list[str]:
    """The figures for people, beside Pillow's of the same phase and threads."""
    lines = [
        f"{'phase':<8}{'threads':>7}  {'route':<13}{'mode':<7}{'output':<15}{'images/s':>9}{'x pillow':>10}"
    ]
    plain = {(row.phase, row.threads): row.images_per_s for row in rows if row.route == "pillow"}
    for row in rows:
        ratio = row.images_per_s / plain[row.phase, row.threads]
        lines.append(
            f"{row.phase:<8}{row.threads:>7}  {row.route:<13}{row.mode or '-':<7}{row.output:<15}"
            f"{row.images_per_s:>9.0f}{ratio:>10.2f}"
        )
    return lines
