"""Sources in archives: ILSVRC-2012, ImageNet-22k and WebDataset, found by content, read in place, and safe from hostile names."""

import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input.build import PrepareOptions
from ddltrain.input.prepare import prepare
from ddltrain.input.sources import find_source
from ddltrain.input.splits import Source, SplitOptions
from ddltrain.input.store import open_dataset
from ddltrain.input.verify import verify

NO_SPLIT = SplitOptions()
WNIDS = ("n01440764", "n01443537", "n02085620")
VAL = {1: WNIDS[2], 2: WNIDS[0], 3: WNIDS[1], 4: WNIDS[2]}


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


def tar_bytes(files: Mapping[str, bytes], extra: Iterable[tarfile.TarInfo] = ()) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info in extra:
            archive.addfile(info)
        for name, data in files.items():
            archive.addfile(member(name, size=len(data)), io.BytesIO(data))
    return stream.getvalue()


def images_of(wnid: str, count: int = 3) -> dict[str, bytes]:
    return {f"{wnid}_{number}.JPEG": f"{wnid} {number}".encode() * 100 for number in reversed(range(count))}


def make_ilsvrc_tars(root: Path) -> Path:
    root.mkdir()
    inner = {f"{wnid}.tar": tar_bytes(images_of(wnid)) for wnid in reversed(WNIDS)}
    (root / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(inner))
    val = {val_name(number): f"val {number}".encode() for number in reversed(VAL)}
    (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(val))
    return root


def make_ilsvrc_folders(root: Path) -> Path:
    for wnid in WNIDS:
        for name, data in images_of(wnid).items():
            (root / "train" / wnid).mkdir(parents=True, exist_ok=True)
            (root / "train" / wnid / name).write_bytes(data)
    (root / "val").mkdir()
    for number in VAL:
        (root / "val" / val_name(number)).write_bytes(f"val {number}".encode())
    return root


def write_labels(root: Path) -> None:
    lines = [f"{val_name(number)} {wnid} {WNIDS.index(wnid)}\n" for number, wnid in VAL.items()]
    (root / "ILSVRC2012_val_labels.txt").write_text("".join(lines))


def content(source: Source) -> dict[str, list[tuple[str, str, bytes]]]:
    return {
        split: [(item.name, source.classes[item.label], item.read()) for item in items]
        for split, items in source.splits.items()
    }


def find(path: Path, options: SplitOptions = NO_SPLIT, kind: str | None = None) -> Source:
    return find_source(str(path), options, kind)


def test_ilsvrc_in_archives_is_what_it_is_in_folders(tmp_path: Path) -> None:
    tars, folders = make_ilsvrc_tars(tmp_path / "tars"), make_ilsvrc_folders(tmp_path / "folders")
    mixed = make_ilsvrc_folders(tmp_path / "mixed")
    for wnid in WNIDS:  # the outer archive unpacked, the inner ones not
        for file in (mixed / "train" / wnid).iterdir():
            file.unlink()
        (mixed / "train" / wnid).rmdir()
        (mixed / "train" / f"{wnid}.tar").write_bytes(tar_bytes(images_of(wnid)))
    found = []
    for root in (tars, folders, mixed):
        write_labels(root)
        (root / "synset_words.txt").write_text(
            "n01440764 tench, Tinca tinca\nn02085620 Chihuahua\nn09999999 x\n"
        )
        source = find(root)
        assert source.kind == "ilsvrc"
        assert source.classes == list(WNIDS)
        assert source.words == ["tench, Tinca tinca", "", "Chihuahua"]
        found.append(content(source))
    assert found[0] == found[1] == found[2]
    assert found[0]["train"][4] == (f"train/{WNIDS[1]}/{WNIDS[1]}_1.JPEG", WNIDS[1], b"n01443537 1" * 100)
    assert found[0]["val"] == [
        (f"val/{val_name(number)}", wnid, f"val {number}".encode()) for number, wnid in VAL.items()
    ]


def test_val_labels_come_from_any_of_the_lists_in_use(tmp_path: Path) -> None:
    root = make_ilsvrc_tars(tmp_path / "s")
    with pytest.raises(
        DataError, match=r"no labels for its images; put ILSVRC2012_val_labels.txt .*--val-list"
    ):
        find(root)
    expected = [wnid for _, wnid in sorted(VAL.items())]
    lists = {
        "caffe.txt": "".join(f"{val_name(n)} {WNIDS.index(w)}\n" for n, w in VAL.items()),
        "LOC_val_solution.csv": "ImageId,PredictionString\n"
        + "".join(f"{val_name(n).removesuffix('.JPEG')},{w} 85 1 499 272\n" for n, w in VAL.items()),
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        source = find(root, SplitOptions(val_list=tmp_path / name))
        assert [source.classes[item.label] for item in source.splits["val"]] == expected
    os.rename(tmp_path / "LOC_val_solution.csv", root / "LOC_val_solution.csv")
    assert [label for _, label, _ in content(find(root))["val"]] == expected


@pytest.mark.parametrize("as_archive", [True, False])
def test_val_labels_come_from_the_devkit(tmp_path: Path, as_archive: bool) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    root = make_ilsvrc_tars(tmp_path / "s")
    numbers = {WNIDS[0]: 7, WNIDS[1]: 2, WNIDS[2]: 5}  # in an order of its own
    kind = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("words", "O"), ("num_children", "i4")]
    rows = [(number, wnid, "w", 0) for wnid, number in numbers.items()]
    meta = io.BytesIO()
    scipy_io.savemat(meta, {"synsets": np.array([*rows, (1001, "n00001740", "entity", 3)], kind)})
    truth = "".join(f"{numbers[wnid]}\n" for _, wnid in sorted(VAL.items())).encode()
    files = {"meta.mat": meta.getvalue(), "ILSVRC2012_validation_ground_truth.txt": truth}
    folder = root / "ILSVRC2012_devkit_t12"
    (folder / "data").mkdir(parents=True)
    for name, data in files.items():
        (folder / "data" / name).write_bytes(data)
    if as_archive:
        with tarfile.open(root / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
            archive.add(folder, "ILSVRC2012_devkit_t12")
        for file in (folder / "data").iterdir():
            file.unlink()
        (folder / "data").rmdir()
        folder.rmdir()
    labels = [label for _, label, _ in content(find(root))["val"]]
    assert labels == [wnid for _, wnid in sorted(VAL.items())]


def test_what_is_wrong_with_val_labels_is_told(tmp_path: Path) -> None:
    root = make_ilsvrc_tars(tmp_path / "s")
    file = root / "ILSVRC2012_val_labels.txt"
    good = [f"{val_name(number)} {wnid}" for number, wnid in VAL.items()]
    wrong = {
        rf"no label for 1 images of .*img_val.tar: {val_name(4)}": good[:3],
        "classes that train does not have: n07777777": [*good[:3], f"{val_name(4)} n07777777"],
        r"labels.txt:4: class 3; train has 3 classes": [*good[:3], f"{val_name(4)} 3"],
        r"labels.txt:1: expected `file WNID`": ["490", *good],
        f"no image of 1 of 3 classes: {WNIDS[0]}": [good[0], good[2], good[3], f"{val_name(2)} {WNIDS[1]}"],
    }
    for message, lines in wrong.items():
        file.write_text("\n".join(lines))
        with pytest.raises(DataError, match=message):
            find(root)
    file.write_text("\n".join([*good, f"{val_name(5)} {WNIDS[0]}"]))
    assert (f"val/{val_name(5)}", f"labelled in {file.name}, but not there") in find(root).ignored
    with pytest.raises(DataError, match="--val-fraction does not apply"):
        find(root, SplitOptions(val_fraction=0.1))


def test_half_of_each_class_of_imagenet_22k_is_val(tmp_path: Path) -> None:
    counts = dict(zip(WNIDS, (10, 7, 1), strict=True))
    tars, folders = tmp_path / "tars", tmp_path / "folders"
    tars.mkdir()
    for wnid, count in counts.items():
        (tars / f"{wnid}.tar").write_bytes(tar_bytes(images_of(wnid, count)))
        (folders / wnid).mkdir(parents=True)
        for name, data in images_of(wnid, count).items():
            (folders / wnid / name).write_bytes(data)
    source = find(tars)
    assert source.kind == "imagenet22k"
    assert source.options.as_dict() == {"val_fraction": 0.5, "val_list": None, "seed": 0}
    split = content(source)
    assert Counter(label for _, label, _ in split["val"]) == {WNIDS[0]: 5, WNIDS[1]: 4}
    assert Counter(label for _, label, _ in split["train"]) == {WNIDS[0]: 5, WNIDS[1]: 3, WNIDS[2]: 1}
    assert {name for name, _, _ in split["train"] + split["val"]} == {
        f"{wnid}/{wnid}_{number}.JPEG" for wnid, count in counts.items() for number in range(count)
    }
    assert "1 of 3 classes" in source.warnings[0]
    assert content(find(folders, kind="imagenet22k")) == split  # the draw hangs on names and seed alone
    assert content(find(tars, SplitOptions(seed=1)))["val"] != split["val"]
    assert len(find(tars, SplitOptions(val_fraction=0.1)).splits["val"]) == 2
    with pytest.raises(DataError, match="add --val-fraction"):
        find(folders)


def samples(labels: Iterable[str], first: int = 0) -> dict[str, bytes]:
    files = {}
    for number, label in enumerate(labels, start=first):
        files[f"{number:06d}.cls"] = f"{label}\n".encode()
        files[f"{number:06d}.json"] = b"{}"
        files[f"{number:06d}.JPG"] = f"image {number}".encode()
    return files


def test_archives_beside_class_folders_are_not_looked_at(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "x.jpg").write_bytes(b"x")
    for name in ("backup.tar", "set.tgz", "set-320.tgz"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
    assert find(tmp_path).kind == "image folder"


@pytest.mark.parametrize("layout", ["train-{}.tar", "set-train-{}.tar", "train/{}.tar"])
def test_webdataset_shards(tmp_path: Path, layout: str) -> None:
    for split, count in (("train", 3), ("val", 1)):
        for number in range(count):
            tar = tmp_path / layout.replace("train", split).format(f"{number:06d}")
            tar.parent.mkdir(exist_ok=True)
            tar.write_bytes(tar_bytes(samples(("10", "2"), first=number * 2)))
    source = find(tmp_path)
    assert (source.kind, source.classes) == ("webdataset", ["2", "10"])
    found = content(source)
    assert [data for _, _, data in found["train"]] == [f"image {number}".encode() for number in range(6)]
    assert [label for _, label, _ in found["train"]] == ["10", "2"] * 3
    assert found["train"][2][0] == layout.removesuffix(".tar").format("000001") + "/000002.JPG"
    assert [label for _, label, _ in found["val"]] == ["10", "2"]
    assert any(name.endswith("*.json") and "2 files" in reason for name, reason in source.ignored)


def test_one_webdataset_shard_is_not_taken_for_ilsvrc(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}.tar").write_bytes(tar_bytes(samples("01")))
    assert find(tmp_path).kind == "webdataset"
    (tmp_path / "train.tar").write_bytes(
        (make_ilsvrc_tars(tmp_path / "s") / "ILSVRC2012_img_train.tar").read_bytes()
    )
    with pytest.raises(DataError, match="no labels for its images"):
        find(tmp_path)


def test_webdataset_classes_have_the_names_and_the_order_of_their_list(tmp_path: Path) -> None:
    (tmp_path / "train-0.tar").write_bytes(tar_bytes(samples("012012012")))
    (tmp_path / "classes.txt").write_text("zebra\nant\ncat\n")
    source = find(tmp_path, SplitOptions(val_fraction=0.34))
    assert source.classes == ["zebra", "ant", "cat"]
    assert Counter(label for _, label, _ in content(source)["val"]) == {"zebra": 1, "ant": 1, "cat": 1}
    (tmp_path / "classes.txt").write_text("zebra\nant\n")
    with pytest.raises(DataError, match=r"class 2, but classes\.txt names 2 classes"):
        find(tmp_path, SplitOptions(val_fraction=0.34))
    (tmp_path / "classes.txt").write_text("zebra\nant\ncat\ndog\n")
    with pytest.raises(DataError, match="no image of the classes dog"):
        find(tmp_path, SplitOptions(val_fraction=0.34))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.jpg": b"x", "b.jpg": b"x", "b.cls": b"0"}, r"no label for 1 of its keys: a"),
        ({"a.jpg": b"x", "a.cls": b"0", "d/c.cls": b"0"}, r"no image for 1 of its keys: d/c"),
        ({"a.jpg": b"x", "a.png": b"x", "a.cls": b"0"}, r"a.png: the second file of its kind for one key"),
        ({"a.jpg": b"x", "a.cls": b"\xff\xfe"}, r"a.cls: expected one class, found"),
        ({"a.jpg": b"x", "a.cls": b"1", "b.jpg": b"x", "b.cls": b"2"}, "there is no val; add --val-fraction"),
    ],
)
def test_what_is_wrong_with_webdataset_shards_is_told(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    (tmp_path / "train-0.tar").write_bytes(tar_bytes(files))
    with pytest.raises(DataError, match=message):
        find(tmp_path)


def test_nothing_in_an_archive_leads_out_of_it(tmp_path: Path) -> None:
    hostile = {
        "/etc/passwd.jpg": member("/etc/passwd.jpg"),
        "../../up.jpg": member("../../up.jpg"),
        "a/../../up.jpg": member("a/../../up.jpg"),
        "soft.jpg": member("soft.jpg", tarfile.SYMTYPE, link="/etc/passwd"),
        "hard.jpg": member("hard.jpg", tarfile.LNKTYPE, link="n01440764_0.JPEG"),
        "device.jpg": member("device.jpg", tarfile.CHRTYPE),
        "pipe.jpg": member("pipe.jpg", tarfile.FIFOTYPE),
        "sparse.jpg": member("sparse.jpg", tarfile.GNUTYPE_SPARSE),
    }
    for wnid in WNIDS[:2]:
        extra = hostile.values() if wnid == WNIDS[0] else ()
        (tmp_path / f"{wnid}.tar").write_bytes(tar_bytes(images_of(wnid), extra))
    before = sorted(os.listdir(tmp_path))
    source = find(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before
    ignored = dict(source.ignored)
    assert {f"{WNIDS[0]}.tar/{name}" for name in hostile} <= set(ignored)
    assert set(ignored.values()) == {
        "a link, a device or a sparse file in an archive",
        "a name that leads out of the archive",
    }
    assert {len(source.splits[split]) for split in ("train", "val")} == {2, 4}


def test_an_archive_that_is_cut_or_damaged_is_named(tmp_path: Path) -> None:
    whole = tar_bytes({f"{WNIDS[0]}_{n}.JPEG": bytes(3000) for n in range(20)})
    file = tmp_path / f"{WNIDS[0]}.tar"
    damaged = bytearray(whole)
    damaged[512 + 3072 : 512 + 3072 + 100] = b"x" * 100  # the second header
    for content_, reason in (
        (whole[:30000], "unexpected end"),
        (damaged, "damaged at byte 3584"),
        (b"x" * 2000, ""),
    ):
        file.write_bytes(content_)
        with pytest.raises(
            DataError, match=rf"{WNIDS[0]}\.tar: not a whole tar archive \(.*{reason}.*get it again"
        ):
            find(tmp_path)
    file.write_bytes(
        whole[: -tarfile.BLOCKSIZE * 2]
    )  # without the blocks of zeros at the end, as some write it
    assert len(find(tmp_path).splits["train"]) == 10
    file.unlink()
    for name in ("train-0.tar.gz", "train-1.tar.gz"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match=r"train-0\.tar\.gz is compressed, unpack it first"):
        find(tmp_path)


def test_an_archive_cut_later_is_told_when_it_is_read(tmp_path: Path) -> None:
    root = make_ilsvrc_tars(tmp_path / "s")
    write_labels(root)
    items = find(root).splits["train"]
    os.truncate(root / "ILSVRC2012_img_train.tar", 2000)
    with pytest.raises(DataError, match="the archive was cut"):
        items[-1].read()


def test_a_single_archive_is_answered_with_its_folder(tmp_path: Path) -> None:
    make_ilsvrc_tars(tmp_path / "s")
    with pytest.raises(
        DataError, match=r"neither a folder nor a text file; give the folder it lies in, .*/s\n"
    ):
        find(tmp_path / "s" / "ILSVRC2012_img_train.tar")


def photo(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (5, 7, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize((70 + number, 50)).save(stream, "JPEG", progressive=number % 3 == 0)
    return stream.getvalue()


def test_the_same_photos_give_the_same_data_set_from_archives_and_from_folders(tmp_path: Path) -> None:
    tars, folders = tmp_path / "tars", tmp_path / "folders"
    shards = tmp_path / "shards"
    shards.mkdir()
    tars.mkdir()
    inner = {}
    for index, wnid in enumerate(WNIDS):
        photos = {f"{wnid}_{number}.JPEG": photo(10 * index + number) for number in range(4)}
        inner[f"{wnid}.tar"] = tar_bytes(photos)
        (folders / "train" / wnid).mkdir(parents=True)
        for name, data in photos.items():
            (folders / "train" / wnid / name).write_bytes(data)
        labelled = {f"{name[:-5]}.jpg": data for name, data in photos.items()}
        labelled |= {f"{name[:-5]}.cls": str(index).encode() for name in photos}
        (shards / f"train-{index:06d}.tar").write_bytes(tar_bytes(labelled))
    val = {val_name(number): photo(50 + number) for number in VAL}
    (folders / "val").mkdir()
    for name, data in val.items():
        (folders / "val" / name).write_bytes(data)
    (tars / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(inner))
    (tars / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(val))
    labelled = {f"{number}.jpg": photo(50 + number) for number in VAL}
    labelled |= {f"{number}.cls": str(WNIDS.index(wnid)).encode() for number, wnid in VAL.items()}
    (shards / "val-000000.tar").write_bytes(tar_bytes(labelled))
    (shards / "classes.txt").write_text("\n".join(WNIDS))
    for root in (tars, folders):
        write_labels(root)
    made = {}
    for root in (tars, folders, shards):
        out = tmp_path / f"{root.name}-out"
        made[root.name] = prepare(str(root), out, PrepareOptions(NO_SPLIT), lambda *_: None).description
        assert verify(out, 1, lambda *_: None) == []
    assert made["tars"]["fingerprint"] == made["folders"]["fingerprint"]
    assert [made[name]["source"]["kind"] for name in made] == ["ilsvrc", "ilsvrc", "webdataset"]
    for split in ("train", "val"):
        assert made["tars"]["splits"][split]["stored"].keys() == {"coefficients kept", "encoded anew"}
        records = [open_dataset(tmp_path / f"{name}-out").splits[split] for name in ("tars", "shards")]
        first, second = ([(record.label, record.image) for record in store] for store in records)
        assert sorted(first) == sorted(second)
