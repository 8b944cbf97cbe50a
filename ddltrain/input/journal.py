"""What a preparation has finished, kept beside its shards, so that one that was killed goes on where it stopped."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddltrain.input.publish import keep_only
from ddltrain.input.record import Shard
from ddltrain.input.tally import Tally

JOURNAL_FILE = "journal.jsonl"


@dataclass(frozen=True)
class Finished:
    """A finished shard of a split, the number of the item behind it, and the tally of the items that went into it."""

    split: str
    shard: Shard
    next_item: int
    tally: Tally


class Journal:
    """The finished shards in the folder where a data set is being built.

    The first line of its file is the `identity` of the preparation, all that decides on the result; each other line is a finished
    shard. What another preparation left is cleared. Raises `OSError` where the disk does not take it.
    """

    finished: list[Finished]
    """What is there already, in order."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._file = folder / JOURNAL_FILE
        self.finished = []
        lines = _whole_lines(self._file)
        first = json.dumps(identity, sort_keys=True).encode() + b"\n"
        for line in lines[1:] if lines[:1] == [first] else []:
            entry = _finished(line, folder)
            if entry is None:
                break
            self.finished.append(entry)
        keep_only(folder, [JOURNAL_FILE, *(entry.shard.file for entry in self.finished)])
        with self._file.open("wb") as file:
            file.writelines([first, *lines[1 : 1 + len(self.finished)]])

    def add(self, entry: Finished) -> None:
        """Notes a shard that is safe on the disk."""
        facts = {**asdict(entry), "tally": entry.tally.as_dict()}
        with self._file.open("ab") as file:
            file.write(json.dumps(facts).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished.append(entry)

    def of_split(self, split: str) -> list[Finished]:
        """The finished shards of a split."""
        return [entry for entry in self.finished if entry.split == split]

    def remove(self) -> None:
        """Ends the journal: all is finished."""
        self._file.unlink()


def is_worth_keeping(folder: Path) -> bool:
    """Whether a preparation that stopped left finished shards in the folder."""
    return len(_whole_lines(folder / JOURNAL_FILE)) > 1


def _whole_lines(file: Path) -> list[bytes]:
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [line for line in lines if line.endswith(b"\n")]  # the last one may be half-written


def _finished(line: bytes, folder: Path) -> Finished | None:
    """The entry of a line, if it is one and its shard is there."""
    try:
        facts = json.loads(line)
        shard = Shard(**facts["shard"])
        entry = Finished(facts["split"], shard, int(facts["next_item"]), Tally.from_dict(facts["tally"]))
        return entry if (folder / shard.file).stat().st_size == shard.file_bytes else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
