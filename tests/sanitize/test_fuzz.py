"""Packing and decoding under sanitizers, with damaged files and records. `tests/fuzz/fuzz.cpp` says how to run more of it."""

import os
import shutil
import subprocess
from pathlib import Path

TESTS = Path(__file__).parent.parent
SOURCES = TESTS.parent / "csrc" / "image"
PARTS = [
    "record",
    "layout",
    "default_codes",
    "huffman",
    "jpeg_scan",
    "jpeg_parse",
    "pack",
    "unpack",
    "idct",
    "lookup",
    "runs",
    "window",
    "isa",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TIMEOUT_S = 300
NUM_EXECUTIONS = 20_000


def test_damaged_files_and_records(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "no C++ compiler"
    sources = [TESTS / "fuzz" / "fuzz.cpp", *(SOURCES / f"{part}.cpp" for part in PARTS)]
    fuzzer = tmp_path / "fuzz"
    command = [compiler, "-std=c++20", "-O1", "-g1", *SANITIZERS, f"-I{SOURCES}", *sources, "-o", fuzzer]
    built = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [fuzzer, TESTS / "fuzz" / "corpus", str(NUM_EXECUTIONS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert f"{NUM_EXECUTIONS} executions" in done.stdout
