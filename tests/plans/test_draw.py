"""Pictures are well-formed and show every message."""

from xml.etree import ElementTree

import pytest

from ddltrain.comm.draw import draw, find_arrows
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.plans.hierarchical import hierarchical
from ddltrain.comm.replay import gather_rows
from ddltrain.comm.topology import Topology

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("algorithm", sorted(set(PLANNERS) - {"shared_memory"}))
@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
@pytest.mark.parametrize("count", [0, 1, 240])
def test_every_message_has_an_arrow(algorithm: str, world_size: int, count: int) -> None:
    plan = PLANNERS[algorithm](Topology.flat(world_size), count, 1000)
    picture = ElementTree.fromstring(draw(plan))
    arrows = find_arrows(gather_rows(plan))
    links = {(arrow.lane, arrow.source, arrow.destination) for arrow in arrows}
    legend = 2
    assert len(picture.findall(f"{SVG}polygon")) == len(arrows) + len(links) + legend
    assert sum(arrow.count for arrow in arrows) == sum(map(plan.sent_elements, range(world_size)))


def test_arrows_of_a_ring() -> None:
    arrows = find_arrows(gather_rows(PLANNERS["ring"](Topology.flat(3), 6, 1)))
    assert [(arrow.round, arrow.source, arrow.destination, arrow.reduces) for arrow in arrows] == [
        (number, source, (source + 1) % 3, number <= 2) for number in (1, 2, 3, 4) for source in (0, 1, 2)
    ]
    assert {arrow.count for arrow in arrows} == {2}


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_words() -> None:
    words = texts(draw(PLANNERS["multicolor"](Topology.flat(8), 240, 1000, color_count=60)))
    assert "4 rounds; a rank sends 1.75 times the data at most" in words
    assert [word for word in words if word.startswith("lane")] == [
        f"lane {lane}: elements {60 * lane} to {60 * lane + 59} of 240" for lane in range(4)
    ]
    assert words.count("round 4 · 25 %") == 4


def test_windows_are_squares() -> None:
    plan = hierarchical(Topology.of_sizes((2, 2, 1)), 240, 1000, windows=True)
    picture = ElementTree.fromstring(draw(plan))
    squares = [each for each in picture.iter(f"{SVG}rect") if each.get("width") == "8"]
    assert len(squares) == 2 + 2  # the first rank of either host of two sums up its windows, and fills them
    assert {"host 0", "host 1", "host 2"} <= set(texts(draw(plan)))
