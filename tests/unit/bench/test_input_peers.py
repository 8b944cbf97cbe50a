"""DALI and FFCV are no dependencies: what needs them is skipped where they are absent."""

import sys
from collections.abc import Callable
from pathlib import Path

import pictures
import pytest
import torch
from PIL import Image

from ddltrain.bench import input_job
from ddltrain.bench import input_routes as routes
from ddltrain.bench.input_job import Options
from ddltrain.bench.input_peers import PeerRoute, open_dali, open_ffcv, open_peers
from ddltrain.bench.input_pictures import Pictures, read_pictures
from ddltrain.errors import DataError
from ddltrain.input.decode import Sampling

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")  # of torchvision
NUM_PICTURES = 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PICTURES):
        (folder / f"{number}.jpg").write_bytes(pictures.jpeg(80 + number, 60, (2, 2), number))
    return folder


@pytest.fixture(scope="module")
def some(photos: Path) -> Pictures:
    return read_pictures(photos, 100, 0)


def test_absent_peers_are_left_out(some: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nvidia.dali", "ffcv.fields.rgb_image"):
        monkeypatch.setitem(sys.modules, module, None)
    peers, left_out = open_peers(some, tmp_path, 2)
    assert peers == {}
    assert [line.split(":")[0] for line in left_out] == ["dali", "ffcv"]


def test_peers_are_timed_beside_the_others(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[str, int]] = []

    def make(sampling: Sampling, num_threads: int) -> Callable[[int], None]:
        made.append((sampling.crop, num_threads))
        return lambda epoch: None

    monkeypatch.setattr(input_job, "_ROUND_S", 1e-6)
    monkeypatch.setattr(input_job, "open_peers", lambda *_: ({"other": make}, ["peer: is not here"]))
    input_job.run_bench(Options(photos, 16, 0, 9, [1, 2], ["train", "eval"], ["uint8"], 5, None))
    said = capsys.readouterr().out
    assert "left out: peer: is not here\n" in said
    assert made == [("random-resized", 1), ("center", 1), ("random-resized", 2), ("center", 2)]
    assert said.count(" other ") == 4


def run_both_phases(make: PeerRoute) -> None:
    for sampling in routes.samplings(16).values():
        run = make(sampling, 1)
        run(0)
        run(1)


def test_dali(some: Pictures) -> None:
    pytest.importorskip("nvidia.dali")
    run_both_phases(open_dali(some))


def test_ffcv(some: Pictures, tmp_path: Path) -> None:
    pytest.importorskip("ffcv")
    num_threads = torch.get_num_threads()
    beton = tmp_path / "pictures.beton"
    run_both_phases(open_ffcv(some, beton, 2))
    written = beton.read_bytes()
    assert all(file in written for file in some.files)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(num_threads)


def test_ffcv_takes_jpeg_files_only(tmp_path: Path) -> None:
    pytest.importorskip("ffcv")
    Image.fromarray(pictures.picture(30, 20)).save(tmp_path / "small.png")
    with pytest.raises(DataError, match="1 pictures are none"):
        open_ffcv(read_pictures(tmp_path, 9, 0), tmp_path / "pictures.beton", 1)
