"""What is known of the clusters of this machine, in one folder a cluster that outlives the commands.

`state.json` is written before the first namespace is made, so that whatever a killed command leaves can be found and removed.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddltrain.cluster.shape import Shape
from ddltrain.comm.folder_lock import ALONE, FolderLock
from ddltrain.errors import ClusterError

FOLDER = Path("/run/ddltrain-clusters")


@dataclass(frozen=True)
class State:
    """A cluster that was begun.

    Attributes:
        is_up: all of it stands. False while it is being built, or for ever if that was cut short.
        goodput_bytes_s: payload that one link of a host was measured to carry, each way.
        round_trip_s: of 8 bytes between two hosts of a rack, measured.
    """

    shape: Shape
    is_up: bool = False
    has_delay_switch: bool = False
    goodput_bytes_s: float = 0.0
    round_trip_s: float = 0.0


def folder_of(name: str) -> Path:
    """Where the cluster keeps its state and the scratch files of its runs."""
    return FOLDER / name


@contextmanager
def lock() -> Iterator[None]:
    """Let one command at a time make or remove clusters; it also keeps them from measuring at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FolderLock(FOLDER, ALONE):
        yield


def write(state: State) -> None:
    """Replace the state of a cluster, atomically."""
    folder = folder_of(state.shape.name)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "state.json.new"
    fresh.write_text(json.dumps(dataclasses.asdict(state), indent=1))
    fresh.replace(folder / "state.json")


def read(name: str) -> State | None:
    """The state of a cluster, None where there is none.

    Raises:
        ClusterError: the file is damaged.
    """
    file = folder_of(name) / "state.json"
    try:
        entries = json.loads(file.read_text())
        return State(**(entries | {"shape": Shape(**entries["shape"])}))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{file} is damaged ({error}): delete the namespaces ddl-{name}-* by `ip netns del`, then this file"
        ) from None


def read_up(name: str) -> State:
    """The state of a cluster that stands.

    Raises:
        ClusterError: there is none.
    """
    state = read(name)
    if state is None or not state.is_up:
        others = ", ".join(names()) or "none"
        raise ClusterError(
            f"no cluster {name} is up (there is: {others}); make one by `ddltrain cluster up --name {name}`"
        )
    return state


def names() -> list[str]:
    """The clusters that were begun, whole or not."""
    return sorted(file.parent.name for file in FOLDER.glob("*/state.json"))


def forget(name: str) -> None:
    """Delete the cluster's folder."""
    shutil.rmtree(folder_of(name), ignore_errors=True)
