import errno
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fake_source import FakeSource

from ddltrain.comm.topology import Topology
from ddltrain.errors import DataError, RecipeError
from ddltrain.input.budget import INDEX_BYTES, Demand, check_room, choose_groups, free_bytes, option_of
from ddltrain.input.hosts import find_hosts
from ddltrain.input.memory import WholeSet, chunks
from ddltrain.input.order import StepPlan
from ddltrain.input.region import Region
from ddltrain.input.shard_reader import Take

GIB = 1 << 30
FOUR_HOSTS = Topology.of_sizes((2, 2, 2, 2))


def test_as_many_groups_as_fit_are_chosen() -> None:
    demand = Demand(100 * GIB, 1000)
    for free, num_groups, sizes in (
        (120, 4, [2, 2, 2, 2]),
        (100, 2, [4, 4]),  # of two hosts each; three groups would leave hosts with a whole copy
        (50, 1, [8]),
    ):
        option, _ = choose_groups(FOUR_HOSTS, demand, [free * GIB] * 4, "auto")
        assert len(option.groups) == num_groups
        assert [len(group) for group in option.groups] == sizes
        assert sorted(rank for group in option.groups for rank in group) == list(range(8))


def test_the_smallest_host_decides() -> None:
    option, lines = choose_groups(
        FOUR_HOSTS, Demand(100 * GIB, 1000), [200 * GIB, 200 * GIB, 70 * GIB, 200 * GIB], "auto"
    )
    assert len(option.groups) == 2
    assert any("whole on each host: host 2 needs 100.00 GiB and may use 63.00 GiB" in line for line in lines)
    assert any("-> in 2 group(s) of 4 ranks" in line for line in lines)


def test_groups_are_of_consecutive_hosts_whose_numbers_differ_by_at_most_one() -> None:
    topology = Topology.of_sizes((1, 2, 1, 3, 1))
    option = option_of(topology, 2, Demand(70 * GIB, 0))
    assert option.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    shares = [need / GIB for need in option.needs]
    assert sum(shares[:3]) == pytest.approx(sum(shares[3:]))
    assert 70 < sum(shares[:3]) < 80
    assert shares[1] == pytest.approx(2 * shares[0])


def test_other_images_and_each_ranks_own_needs_count() -> None:
    needs = option_of(FOUR_HOSTS, 4, Demand(GIB, 100, dealt_bytes=8 * GIB, rank_bytes=GIB)).needs
    assert needs == (GIB + 2 * GIB + 2 * GIB + 2 * 100 * INDEX_BYTES,) * 4


def test_a_set_that_fits_nowhere_is_refused_with_the_ways_out() -> None:
    with pytest.raises(
        DataError,
        match=r"in 1 group\(s\) of 8 ranks: host 0 needs 27\.50 GiB and may use 9\.00 GiB.*use more hosts",
    ):
        choose_groups(FOUR_HOSTS, Demand(100 * GIB, 0), [10 * GIB] * 4, "auto")
    with pytest.raises(DataError, match=r"set data\.groups=auto"):
        choose_groups(FOUR_HOSTS, Demand(100 * GIB, 0), [100 * GIB] * 4, 4)
    with pytest.raises(RecipeError, match=r"data\.groups = 5 needs as many hosts, and there are 4"):
        choose_groups(FOUR_HOSTS, Demand(GIB, 0), [10 * GIB] * 4, 5)
    with pytest.raises(DataError, match=r"host 1 needs 2\.00 GiB and may use 921\.60 MiB"):
        check_room([GIB, 2 * GIB], [10 * GIB, GIB])


def test_what_is_free_is_bounded_by_the_control_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    assert free_bytes(meminfo, tmp_path) == 800 << 10
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(meminfo, tmp_path) == 800 << 10
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 100\nactive_file 10000\ninactive_file 20000\n")
    assert free_bytes(meminfo, tmp_path) == 230000


def test_given_back_pages_are_no_longer_resident_and_others_stay() -> None:
    region = Region(1 << 20)
    region.block[:] = 7
    region.give_back(100, 70_000)
    page = 4096
    assert not region.block[: 70_000 // page * page].any()
    assert (region.block[70_000 // page * page :] == 7).all()
    region.give_back(70_000, 1 << 20)
    assert not region.block.any()
    assert len(Region(0).block) == 0


def test_chunks_cover_all_records_in_runs_of_about_the_asked_size() -> None:
    sizes = np.random.default_rng(0).integers(0, 50, 300)
    sizes[7] = 5000
    starts = np.concatenate([[0], np.cumsum(sizes)])
    runs = list(chunks(starts, 3, 290, 200))
    assert runs[0][0] == 3
    assert runs[-1][1] == 290
    assert all(one[1] == other[0] for one, other in pairwise(runs))
    assert all(starts[last] - starts[first] <= 200 or last == first + 1 for first, last in runs)
    assert len(runs) < 80


class SlowSource(FakeSource):
    """Reads only when told to."""

    def __init__(self) -> None:
        super().__init__(300, 1000)
        self.may_read = threading.Event()

    def read(self, first: int, last: int, take: Take) -> None:
        self.may_read.wait()
        super().read(first, last, take)


def test_the_first_batches_do_not_wait_for_the_whole_set() -> None:
    source, news = SlowSource(), []
    plan = StepPlan(300, 1, 16, "keep")
    memory = WholeSet(source, find_hosts(None), plan, 1, lambda done, total, _: news.append((done, total)))
    held = memory.open(0)

    def images(part: slice) -> list[bytes]:
        block, starts, sizes = held.batch(part)
        return [block[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=True)]

    wanted = [source.image(record).tobytes() for record in held.records[:16].tolist()]
    assert images(slice(0, 16)) == wanted
    assert held.batch(slice(0, 16))[0] is not held.block
    source.may_read.set()
    while held.batch(slice(0, 16))[0] is not held.block:
        time.sleep(0.01)
    assert images(slice(0, 16)) == wanted
    assert news[0] == (0, source.sizes.sum())
    assert news[-1] == (source.sizes.sum(), source.sizes.sum())
    memory.close()


def test_an_error_of_the_reading_thread_is_raised_with_the_next_batch() -> None:
    class BadSource(FakeSource):
        def read(self, first: int, last: int, take: Take) -> None:
            raise DataError("a damaged shard")

    with pytest.raises(DataError, match="a damaged shard"):
        load(BadSource(300, 1000))


def load(source: FakeSource) -> np.ndarray:
    """All images as they lie in memory."""
    memory = WholeSet(source, find_hosts(None), StepPlan(300, 1, 16, "keep"), 1)
    held = memory.open(0)
    try:
        while held.batch(slice(0, 16))[0] is not held.block:
            time.sleep(0.01)
    finally:
        memory.close()
    return held.block


def test_writes_that_are_cut_short_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write_all, write = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: write_all(file, parts[: len(parts) // 2], at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:500], at))
    source = FakeSource(300, 1000)
    assert load(source).tobytes() == b"".join(source.image(record).tobytes() for record in range(300))


def test_a_lack_of_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    write_all = os.pwritev

    def write(file: int, parts: list[memoryview], at: int) -> int:
        if at:  # not the index, which comes first
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_all(file, parts, at)

    monkeypatch.setattr(os, "pwritev", write)
    with pytest.raises(DataError, match=r"memory ran out while images were loaded .*; use more hosts"):
        load(FakeSource(300, 1000))
