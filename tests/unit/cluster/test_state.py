from pathlib import Path

import pytest

from ddltrain.cluster import state
from ddltrain.cluster.shape import Shape
from ddltrain.cluster.state import State
from ddltrain.errors import ClusterError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FOLDER", tmp_path / "clusters")


def test_what_is_written_is_read() -> None:
    known = State(Shape("a", 3, 1e8, delay_s=1e-3), True, True, 12e6, 2e-3)
    assert state.read("a") is None
    state.write(known)
    assert state.read("a") == known
    assert state.names() == ["a"]
    state.forget("a")
    assert (state.read("a"), state.names()) == (None, [])


def test_only_what_stands_can_be_used() -> None:
    state.write(State(Shape("half", 3, 1e8)))
    for name in ("half", "none"):
        with pytest.raises(ClusterError, match=rf"no cluster {name} is up \(there is: half\)"):
            state.read_up(name)


@pytest.mark.parametrize("text", ["", "[]", '{"shape": {"name": "a"}}', '{"shape": {"name": "A!"}}'])
def test_a_damaged_file_is_named(text: str) -> None:
    state.write(State(Shape("a", 3, 1e8)))
    file = state.folder_of("a") / "state.json"
    file.write_text(text)
    with pytest.raises(ClusterError, match=r"state\.json is damaged"):
        state.read("a")


def test_one_command_at_a_time() -> None:
    import fcntl
    import os

    with state.lock():
        descriptor = os.open(state.FOLDER, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
