"""`ddltrain plan`, in this process."""

from pathlib import Path

import pytest

from ddltrain.cli.main import main
from ddltrain.errors import EXIT_USER_ERROR

Capture = pytest.CaptureFixture[str]


def test_show(capsys: Capture) -> None:
    words = "plan show all --hosts 4x2 --count 80000 --segment 1000 --alpha 0 --option windows=yes"
    assert main(words.split()) == 0
    head, titles, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("320000 bytes on 8 ranks, 4 hosts; links 1000 Mbit/s")
    assert head.endswith("no all-reduce needs less than 3.84 ms")
    assert titles.split() == ["algorithm", "rounds", "sent/data", "rows", "ms", "x", "floor", "plan"]
    shown = {line.split()[0]: line for line in lines}
    assert list(shown) == ["ring", "multiring", "multicolor", "torus2d", "halving_doubling", "hierarchical"]
    assert shown["ring"].split()[1:3] == ["14", "1.750"]
    assert shown["hierarchical"].split()[1:3] == ["6", "0.750"]
    assert shown["hierarchical"].endswith("2 slices in shared memory, ring of 4 hosts between them")


def test_verify(capsys: Capture) -> None:
    words = "plan verify hierarchical --ranks 12 --option dims=2x2x3 --option exchanges=direct,direct,ring"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.startswith("hierarchical: hierarchy of 2 x 2 x 3, 6553600 elements: sums")


def test_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "draw", "multiring", "--hosts", "2,1,2", "--option", "rings=2"]) == 0
    assert main(["plan", "draw", "shared_memory", "--ranks", "4", "--out", str(tmp_path / "memory.svg")]) == 0
    assert "2 rings of 5" in (tmp_path / "multiring.svg").read_text()
    assert "shared memory of 4" in (tmp_path / "memory.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("show star --ranks 2", "no algorithm 'star': take one of ring, multiring"),
        ("show ring", "say how many ranks"),
        ("show ring --ranks 0", "every host needs a rank"),
        ("show ring --hosts 4by2", "--hosts '4by2' is neither like 4x2 nor like 2,2,1"),
        ("show ring --hosts 4x2 --ranks 9", "--hosts 4x2 are 8 ranks, but --ranks says 9"),
        ("show ring --ranks 4 --option colors=2", "ring has no option 'colors'; it has none"),
        ("show multicolor --ranks 4 --option colors=two", "--option colors=two is not like colors=4"),
        (
            "verify hierarchical --ranks 8 --option dims=2x3",
            "dims 2 x 3 make 6 places, but there are 8 ranks",
        ),
        ("show ring --ranks 4 --rate 0", "--rate and --memory must be positive"),
        (
            "draw ring --ranks 2 --out /nonexistent/ring.svg",
            "cannot write /nonexistent/ring.svg: No such file",
        ),
    ],
)
def test_mistakes(words: str, message: str, capsys: Capture) -> None:
    assert main(["plan", *words.split()]) == EXIT_USER_ERROR
    assert message in capsys.readouterr().err
