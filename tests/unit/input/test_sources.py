"""What counts as a source, how classes are numbered, where val comes from, and what users are told."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from ddltrain.errors import DataError
from ddltrain.input.folders import printable
from ddltrain.input.sources import find_source
from ddltrain.input.splits import Source, SplitOptions

NO_SPLIT = SplitOptions()


def make(root: Path, names: Iterable[str]) -> Path:
    """Makes files below `root`, each with its own name as content; a name that ends in / is an empty folder."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name, errors="surrogateescape")
    return root


def find(path: Path | str, options: SplitOptions = NO_SPLIT) -> Source:
    return find_source(str(path), options)


def labelled(source: Source, split: str) -> list[tuple[str, str]]:
    return [(item.name, source.classes[item.label]) for item in source.splits[split]]


def test_classes_come_from_train_sorted_as_text(tmp_path: Path) -> None:
    train = [f"train/{name}/0.png" for name in ("b", "a", "c", "10", "2")]
    val = [f"val/{name}/0.png" for name in ("c", "2", "b", "a", "10")]
    make(tmp_path / "s", [*train, *val, "val/empty/"])
    source = find(tmp_path / "s")
    assert source.classes == ["10", "2", "a", "b", "c"]
    assert labelled(source, "val") == [(f"val/{name}/0.png", name) for name in source.classes]
    assert [item.label for item in source.splits["val"]] == [0, 1, 2, 3, 4]
    assert source.splits["val"][1].read() == b"val/2/0.png"
    assert any("empty folders of classes that train does not have: empty" in w for w in source.warnings)


def test_numeric_classes_that_sort_as_text_are_warned_of(tmp_path: Path) -> None:
    make(tmp_path / "s", [f"{split}/{name}/0.png" for split in ("train", "val") for name in ("2", "10")])
    source = find(tmp_path / "s")
    assert source.classes == ["10", "2"]
    assert source.warnings == ["classes are sorted as text, not as numbers: 10, 2"]


def test_everything_found_is_an_image_or_listed_as_ignored(tmp_path: Path) -> None:
    used = ["train/a/x.JPEG", "train/a/deep/er/y.png", "train/a/z w.Tiff", "val/a/v.webp"]
    ignored = {
        "train/a/Thumbs.db": "not the name of an image",
        "train/a/deep/README.txt": "not the name of an image",
        "train/a/.DS_Store": "hidden",
        "train/a/._x.jpg": "hidden",
        "train/.git": "hidden",
        "train/__MACOSX": "hidden",
        "train/loose.jpg": "image outside the class folders",
        "train/labels.csv": "not the name of an image",
        "extra/": "folder beside train and val",
    }
    files = [name for name in ignored if name not in ("train/.git", "train/__MACOSX")]
    make(tmp_path / "s", [*used, *files, "train/.git/c/x.jpg", "train/__MACOSX/x.jpg"])
    source = find(tmp_path / "s")
    found = [item.name for split in ("train", "val") for item in source.splits[split]]
    assert sorted(found) == sorted(used)
    assert dict(source.ignored) == ignored


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    root = make(tmp_path / "s", ["train/a/x.png", "val/a/v.png", "val/b/v.png", "../far/b/y.png"])
    (root / "train/b").symlink_to(tmp_path / "far/b")
    (root / "train/a/up").symlink_to(root / "train")
    (root / "train/a/self").symlink_to("self")
    (root / "train/loop").symlink_to("loop")
    (root / "train/a/lost.png").symlink_to("nowhere")
    source = find(root)
    names = [name for name, _ in labelled(source, "train")]
    assert Counter(names)["train/b/y.png"] == 1
    assert "train/a/lost.png" in names  # reading it will tell that it is broken
    assert len(names) < 10
    assert "a link to a folder above it" in dict(source.ignored).values()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train/a/x.png", "val/a/x.png", "val/z/x.png"],
            "classes that train does not have: z; train has 1: a",
        ),
        (
            ["train/a/x.png", "train/b/x.png", "train/c/x.png", "val/b/x.png", "val/a/"],
            "val: no image of 2 of 3 classes: a, c; add some, or remove these classes from train",
        ),
        (
            ["train/a/x.png", "val/x.png", "val/y.png"],
            r"val: holds 2 images but no class folders.*--val-list",
        ),
        (["train/a/x.png", "train/b/x.txt", "val/a/x.png"], "no images in the class folders: b"),
        (["train/a/.x.png", "val/a/x.png"], "train: holds no images"),
        (["train/a/x.png", "val/"], "val: holds no images"),
        (["train/a/x.png"], r"there is no val; add --val-fraction"),
        (["train/a/x.png", "val/a/x.png", "validation/a/x.png"], "holds val and validation; keep one"),
        (["a/x.png", "b/x.png"], r"has 2 class folders but no train/ and val/; add --val-fraction 0.1"),
        (["x.png", "y.png"], "holds 2 images but no class folders"),
        (["val/a/x.png"], "has val/ but no train/"),
        (["inner/train/a/x.png"], "did you mean .*inner"),
        (["cifar-10-python.tar.gz"], "unpack cifar-10-python.tar.gz"),
        (["notes.md"], "(?s)not a source of labelled images.*SOURCE may be.*digits"),
        (["dataset.json"], "a prepared data set already"),
    ],
)
def test_what_is_wrong_with_a_folder_is_told(tmp_path: Path, names: list[str], message: str) -> None:
    make(tmp_path / "s", names)
    with pytest.raises(DataError, match=message):
        find(tmp_path / "s")


def test_a_wrong_path_gets_the_nearest_guess(tmp_path: Path) -> None:
    make(tmp_path, ["images/a/x.png", "data.zip"])
    with pytest.raises(DataError, match="no such file or folder; did you mean images"):
        find(tmp_path / "imags")
    with pytest.raises(DataError, match=r"(?s)did you mean digits\?.*SOURCE may be"):
        find(tmp_path / "digit")
    (tmp_path / "data.zip").write_bytes(b"PK\0")
    with pytest.raises(DataError, match="neither a folder nor a text file; unpack it first"):
        find(tmp_path / "data.zip")


@pytest.mark.parametrize("name", ["test", "validation", "Val"])
def test_other_names_of_val_are_known(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s", ["Train/a/x.png", f"{name}/a/v.png"])
    assert labelled(find(tmp_path / "s"), "val") == [(f"{name}/a/v.png", "a")]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path / "s", [f"{name}/{index}.png" for name in ("bus", "car", "train") for index in range(4)])
    source = find(tmp_path / "s", SplitOptions(val_fraction=0.25))
    assert source.classes == ["bus", "car", "train"]


def test_val_fraction_takes_its_share_of_each_class(tmp_path: Path) -> None:
    counts = {"a": 40, "b": 10, "c": 3, "d": 1}
    make(tmp_path / "s", [f"{name}/{index}.png" for name, count in counts.items() for index in range(count)])
    source = find(tmp_path / "s", SplitOptions(val_fraction=0.2))
    split = {name: set(labelled(source, name)) for name in ("train", "val")}
    assert Counter(label for _, label in split["val"]) == {"a": 8, "b": 2, "c": 1}
    assert not split["train"] & split["val"]
    assert len(split["train"] | split["val"]) == 54
    assert "val has no image of 1 of 4 classes: d: each has but one image" in source.warnings
    again = find(tmp_path / "s", SplitOptions(val_fraction=0.2))
    assert set(labelled(again, "val")) == split["val"]
    other = find(tmp_path / "s", SplitOptions(val_fraction=0.2, seed=1))
    assert set(labelled(other, "val")) != split["val"]


def test_val_fraction_does_not_apply_where_there_is_a_val(tmp_path: Path) -> None:
    make(tmp_path / "s", ["train/a/x.png", "val/a/x.png"])
    for source in (tmp_path / "s", "digits"):
        with pytest.raises(DataError, match="appl"):
            find(source, SplitOptions(val_fraction=0.2))


def test_a_list_labels_a_flat_val(tmp_path: Path) -> None:
    make(tmp_path / "s", ["train/a/x.png", "train/b/x.png", "val/1.png", "val/2.png"])
    (tmp_path / "s/val/labels.txt").write_text("1.png b\n2.png a\n")
    source = find(tmp_path / "s", SplitOptions(val_list=tmp_path / "s/val/labels.txt"))
    assert labelled(source, "val") == [("1.png", "b"), ("2.png", "a")]
    assert source.splits["val"][0].read() == b"val/1.png"


def test_integer_labels_sort_as_numbers(tmp_path: Path) -> None:
    root = make(tmp_path / "s", ["i/a b.png", "i/c.png"])
    (root / "train.txt").write_bytes(b"\xef\xbb\xbfi/a b.png 10\r\n\r\ni/c.png\t2\ni/a b.png   007\n")
    (root / "val.txt").write_text("i/c.png 7\ni/c.png 2\ni/c.png 10\n")
    source = find(root)
    assert source.classes == ["2", "7", "10"]
    assert labelled(source, "train") == [("i/a b.png", "10"), ("i/c.png", "2"), ("i/a b.png", "7")]
    assert labelled(source, "val") == [("i/c.png", "7"), ("i/c.png", "2"), ("i/c.png", "10")]
    assert source.splits["train"][0].read() == b"i/a b.png"


def test_named_labels_sort_as_text(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a.png zebra\nb.png 10\nc.png 2\nd.png 2\n/abs/e.png 10\nf.png zebra\n")
    source = find(tmp_path / "l.txt", SplitOptions(val_fraction=0.5))
    assert source.classes == ["10", "2", "zebra"]
    assert Counter(label for _, label in labelled(source, "val")) == {"10": 1, "2": 1, "zebra": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png 1\nb.png\n", r"l\.txt:2: expected `path label`, found 'b.png'"),
        ("a.png -1\n", r"l\.txt:1: label -1"),
        ("\n \n", "holds no `path label` line"),
        ("a.png 1\n", "there is no val"),
    ],
)
def test_what_is_wrong_with_a_list_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        find(tmp_path / "l.txt")


def test_class_folders_win_over_lists_but_not_a_flat_val(tmp_path: Path) -> None:
    root = make(tmp_path / "s", ["train/a/x.png", "val/a/x.png"])
    for name in ("train.txt", "val.txt"):
        (root / name).write_text("train/a/x.png k\n")
    assert find(root).classes == ["a"]
    os.rename(root / "val/a/x.png", root / "val/x.png")
    (root / "val/a").rmdir()
    assert find(root).classes == ["k"]


def test_the_signature_follows_names_times_and_labels(tmp_path: Path) -> None:
    root = make(tmp_path / "s", ["train/a/x.png", "train/b/x.png", "val/a/x.png", "val/b/x.png"])
    seen = [find(root).signature]
    assert find(root).signature == seen[0]
    os.utime(root / "train/a/x.png", (1, 1))
    seen.append(find(root).signature)
    os.rename(root / "train/a/x.png", root / "train/a/y.png")
    seen.append(find(root).signature)
    make(root, ["train/a/more.png"])
    seen.append(find(root).signature)
    assert len(set(seen)) == 4


def test_digits_are_the_same_source_each_time() -> None:
    first = find("digits")
    assert first.classes == list("0123456789")
    assert (len(first.splits["train"]), len(first.splits["val"])) == (1442, 355)
    second = find("digits")
    assert second.signature == first.signature
    assert second.splits["val"][3].read() == first.splits["val"][3].read()


def test_a_missing_or_damaged_cifar_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for path in (tmp_path, folder):
        with pytest.raises(DataError, match=r"data_batch_1: missing"):
            find(path)
    (folder / "data_batch_1").write_bytes(b"not a pickle")
    with pytest.raises(DataError, match=r"data_batch_1: damaged \(its MD5 differs\)"):
        find(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "esc\x1b[31m", "sur\udcff"])
def test_odd_names_are_safe_to_print(name: str) -> None:
    shown = printable(name)
    assert shown.isprintable()
    shown.encode("utf-8")
    assert printable("ä b [red]") == "ä b [red]"
