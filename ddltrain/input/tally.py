"""Counts what a preparation finds: kinds of files, what became of them, what is odd about them, and which are unusable."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ddltrain.input.files import ImageError
from ddltrain.input.packing import Packed

Size = tuple[int, int]


class Bad(NamedTuple):
    """An unusable image: its name, why in words, and the kind of its fault ("truncated", "corrupt", "bomb" and so on)."""

    name: str
    reason: str
    fault: str


@dataclass
class Tally:
    """Counts over some images of a split; tallies of parts add up to that of the whole.

    `kinds` counts what the files were, `stored` what became of them; `odd` holds (name, note) of what is odd, `bad` what is
    unusable; `smallest` and `largest` are (width, height), by area.
    """

    image_bytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    odd: list[tuple[str, str]] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    smallest: Size | None = None
    largest: Size | None = None

    def add(self, name: str, packed: Packed) -> None:
        """Counts a packed image."""
        self.image_bytes += len(packed.image)
        self.kinds[packed.kind] += 1
        self.stored[packed.stored] += 1
        self.odd += [(name, note) for note in packed.notes]
        self._stretch((packed.width, packed.height))

    def add_bad(self, name: str, error: ImageError) -> None:
        """Counts an unusable image."""
        self.bad.append(Bad(name, str(error), error.fault))

    def merge(self, other: "Tally") -> None:
        """Adds the counts of images that follow."""
        self.image_bytes += other.image_bytes
        self.kinds += other.kinds
        self.stored += other.stored
        self.odd += other.odd
        self.bad += other.bad
        for size in (other.smallest, other.largest):
            if size is not None:
                self._stretch(size)

    def _stretch(self, size: Size) -> None:
        self.smallest = min(self.smallest or size, size, key=_by_area)
        self.largest = max(self.largest or size, size, key=_by_area)

    def as_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the same tally of, fit for JSON."""
        return {**vars(self), "kinds": dict(self.kinds), "stored": dict(self.stored)}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Self:
        """The inverse of `as_dict`; raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        return cls(
            int(facts["image_bytes"]),
            Counter(facts["kinds"]),
            Counter(facts["stored"]),
            [(str(name), str(note)) for name, note in facts["odd"]],
            [Bad(*map(str, bad)) for bad in facts["bad"]],
            *(
                None if facts[key] is None else (facts[key][0], facts[key][1])
                for key in ("smallest", "largest")
            ),
        )


def _by_area(size: Size) -> Size:
    return (size[0] * size[1], size[0])
