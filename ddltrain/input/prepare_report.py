"""What a preparation tells of the images it found: in `dataset.json`, and whole, image by image, in `report.txt`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ddltrain.input.build import BuiltSplit
from ddltrain.input.folders import printable
from ddltrain.input.tally import Bad

REPORT_FILE = "report.txt"
_LISTED = (
    1000  # names of each kind in dataset.json, which every start of a training reads; report.txt has all
)


def describe_split(built: BuiltSplit) -> dict[str, Any]:
    """What `dataset.json` tells of a split; sizes are (width, height), `odd` lists the first names of each kind."""
    tally = built.tally
    names: dict[str, list[str]] = {}
    for name, note in tally.odd:
        names.setdefault(note, []).append(name)
    return {
        "images": sum(built.per_class),
        "image_bytes": tally.image_bytes,
        "file_bytes": sum(shard.file_bytes for shard in built.shards),
        "per_class": built.per_class,
        "smallest": tally.smallest,
        "largest": tally.largest,
        "kinds": by_count(tally.kinds),
        "stored": by_count(tally.stored),
        "odd": {note: {"images": len(of), "names": of[:_LISTED]} for note, of in sorted(names.items())},
        "shards": [asdict(shard) for shard in built.shards],
    }


def by_count(counts: Counter[str]) -> dict[str, int]:
    """The counts, largest first; those that are equal by name."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def fault_counts(bad: Iterable[Bad]) -> str:
    """The kinds of faults and their counts in words, such as "2 truncated, 1 bomb"."""
    counts = Counter(entry.fault for entry in bad)
    return ", ".join(f"{count} {fault}" for fault, count in by_count(counts).items())


def report_text(
    description: dict[str, Any], built: dict[str, BuiltSplit], ignored: list[tuple[str, str]]
) -> str:
    """The whole report: what each split holds, then every image that is odd, left out or ignored, a line each."""
    lines = [f"prepared from {description['source']['kind']} {description['source']['path']}"]
    lines += [f"{name}\t{value}" for name, value in description["options"].items()]
    for split, facts in description["splits"].items():
        lines += ["", f"{split}: {facts['images']} images"]
        for title in ("kinds", "stored"):
            lines += [f"{count:9}  {what}" for what, count in facts[title].items()]
            lines.append("")
    for part in built.values():
        lines += [f"odd\t{note}\t{printable(name)}" for name, note in part.tally.odd]
        lines += [f"left out\t{bad.fault}: {bad.reason}\t{printable(bad.name)}" for bad in part.tally.bad]
    lines += [f"ignored\t{reason}\t{printable(name)}" for name, reason in ignored]
    return "\n".join(lines) + "\n"
