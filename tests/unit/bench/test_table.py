from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ddltrain.bench.plot import draw
from ddltrain.bench.table import Row, as_json, header, lines

ROW = Row("4 hosts", "ring", 4, "float32", "sum", False, 25 << 20, 0.5, 0.4, 0)


def test_figures_of_a_row() -> None:
    assert ROW.algbw == pytest.approx((25 << 20) / 0.5)
    assert ROW.busbw == pytest.approx(ROW.algbw * 1.5)
    assert ROW.ratio == pytest.approx(1.25)
    assert replace(ROW, floor_s=0.0).ratio is None


def test_a_line_shows_both_forms_under_their_heads() -> None:
    (line,) = lines([ROW, replace(ROW, in_place=True, time_s=0.8, errors=3)])
    assert line.split() == [
        *("26214400", "6553600", "float32", "sum", "ring"),
        *("500000.0", "0.052", "0.079", "1.25", "0"),
        *("800000.0", "0.033", "0.049", "2.00", "3"),
        "400000.0",
    ]
    assert {len(line), len(header().splitlines()[1]), len(header().splitlines()[2])} == {len(line)}


def test_rows_for_programs() -> None:
    assert as_json([ROW]) == [
        {
            "place": "4 hosts",
            "algorithm": "ring",
            "ranks": 4,
            "dtype": "float32",
            "op": "sum",
            "in_place": False,
            "size_bytes": 25 << 20,
            "time_s": 0.5,
            "floor_s": 0.4,
            "errors": 0,
        }
    ]


@pytest.mark.parametrize("floor_s", [0.0, 1e-6])
@pytest.mark.parametrize("sizes", [[4096], [4096, 65536, 1 << 20]])
def test_the_drawing_is_whole(floor_s: float, sizes: list[int]) -> None:
    rows = [
        replace(
            ROW,
            algorithm=name,
            in_place=True,
            dtype=dtype,
            size_bytes=size,
            time_s=size * 1e-8,
            floor_s=floor_s,
        )
        for name in ("ring <a>", "mpi")
        for dtype in ("float32", "int64")
        for size in sizes
    ]
    tree = ElementTree.fromstring(draw(rows))
    curves = [element for element in tree.iter() if element.tag.endswith("polyline")]
    assert len(curves) == 2 * (3 if floor_s else 2)
    places = [
        tuple(map(float, pair.split(","))) for curve in curves for pair in curve.get("points", "").split()
    ]
    assert all(0 <= x <= 720 and 0 <= y <= 420 for x, y in places)
    assert {element.text for element in tree.iter() if element.text} >= {"ring <a>", "mpi", "4 KiB"}
