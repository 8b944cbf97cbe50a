"""Weights from files of many makers into a model."""

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from ddltrain.errors import CheckpointError
from ddltrain.nets import build_model, load_weights

State = dict[str, Tensor]


def make_state(num_classes: int = 10) -> State:
    """A ResNet-20's state in which every tensor differs from a fresh model's."""
    state = copy.deepcopy(build_model("resnet20", num_classes).state_dict())
    return {name: tensor + 1 if tensor.is_floating_point() else tensor + 7 for name, tensor in state.items()}


def save(value: Any, tmp_path: Path) -> Path:
    path = tmp_path / "weights.pt"
    torch.save(value, path)
    return path


def assert_loaded(model: nn.Module, state: State, but_not: tuple[str, ...] = ()) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]) != (name in but_not), name


def message_of(model: nn.Module, path: Path) -> str:
    """The error's message; the model must be as it was."""
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("key", [None, "model", "state_dict"])
def test_loads_a_state_from_any_place_and_wrapper(tmp_path: Path, prefix: str, key: str | None) -> None:
    state = make_state()
    wrapped = {prefix + name: tensor for name, tensor in state.items()}
    path = save(wrapped if key is None else {key: wrapped, "epoch": 3, "args": {"lr": 0.1}}, tmp_path)
    model = build_model("resnet20", 10)
    assert load_weights(model, path) == []
    assert_loaded(model, state)


def test_loads_torchvision_s_weights(tmp_path: Path) -> None:
    theirs = torchvision.models.resnet18(num_classes=3)
    model = build_model("resnet18", 3)
    assert load_weights(model, save(theirs.state_dict(), tmp_path)) == []
    assert_loaded(model, theirs.state_dict())


def test_a_part_named_module_keeps_its_name(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 3))
    state = {name: tensor + 1 for name, tensor in copy.deepcopy(model.state_dict()).items()}
    load_weights(model, save(state, tmp_path))
    assert_loaded(model, state)
    state = {name: tensor + 1 for name, tensor in state.items()}
    load_weights(model, save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path))
    assert_loaded(model, state)


def test_another_number_of_classes_keeps_the_fresh_classifier(tmp_path: Path) -> None:
    state = make_state(num_classes=4)
    model = build_model("resnet20", 10)
    fresh = copy.deepcopy(model.get_submodule("fc").state_dict())
    messages = load_weights(model, save(state, tmp_path))
    assert messages == ["fc is not loaded and starts afresh: 4 classes in the file, 10 here"]
    state |= {"fc.weight": fresh["weight"], "fc.bias": fresh["bias"]}
    assert_loaded(model, state)


def test_a_bare_linear_of_another_number_of_classes(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    assert len(load_weights(model, save(nn.Linear(2, 5).state_dict(), tmp_path))) == 1


def test_a_classifier_of_another_width_is_an_error(tmp_path: Path) -> None:
    state = make_state() | {"fc.weight": torch.zeros(4, 63)}
    message = message_of(build_model("resnet20", 10), save(state, tmp_path))
    assert "of another shape: fc.weight (4x63 in the file, 10x64 in the model)" in message


def test_another_layer_of_another_shape_is_an_error(tmp_path: Path) -> None:
    state = make_state(num_classes=4) | {"conv1.weight": torch.zeros(16, 3, 7, 7)}
    message = message_of(build_model("resnet20", 10), save(state, tmp_path))
    assert "of another shape: conv1.weight (16x3x7x7 in the file, 16x3x3x3 in the model)" in message
    assert "fc" not in message


def test_names_the_first_missing_and_unexpected(tmp_path: Path) -> None:
    state = make_state()
    del state["layer1.0.conv1.weight"]
    state |= {f"head.{i}.weight": torch.zeros(1) for i in range(5)}
    message = message_of(build_model("resnet20", 10), save(state, tmp_path))
    assert "missing: layer1.0.conv1.weight;" in message
    assert "unexpected: head.0.weight, head.1.weight, head.2.weight and 2 more" in message


def test_another_network_is_an_error(tmp_path: Path) -> None:
    path = save(build_model("resnet32", 10).state_dict(), tmp_path)
    assert "unexpected: layer1.3.conv1.weight" in message_of(build_model("resnet20", 10), path)


def test_a_missing_classifier_is_an_error(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in make_state().items() if not name.startswith("fc.")}
    path = save(state, tmp_path)
    assert "missing: fc.weight, fc.bias" in message_of(build_model("resnet20", 10), path)


def test_old_files_without_batch_counters_load(tmp_path: Path) -> None:
    state = make_state()
    old = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    model = build_model("resnet20", 10)
    assert load_weights(model, save(old, tmp_path)) == []
    assert torch.equal(model.state_dict()["layer3.2.bn2.running_var"], old["layer3.2.bn2.running_var"])


def test_a_name_twice_is_an_error(tmp_path: Path) -> None:
    state = make_state()
    path = save(state | {"module.fc.bias": state["fc.bias"]}, tmp_path)
    assert "holds fc.bias twice" in message_of(build_model("resnet20", 10), path)


@pytest.mark.parametrize(
    "content", [b"", b"not weights at all\n", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(100)]
)
def test_not_a_torch_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    assert "not written by torch.save, or it is damaged" in message_of(build_model("resnet20", 10), path)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_a_cut_file(tmp_path: Path, fraction: float) -> None:
    path = save(make_state(), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    assert "damaged" in message_of(build_model("resnet20", 10), path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    model = build_model("resnet20", 10)
    assert "No such file" in message_of(model, tmp_path / "absent.pt")
    assert "directory" in message_of(model, tmp_path)


@pytest.mark.parametrize("value", [argparse.Namespace(lr=1), nn.Linear(2, 3)])
def test_pickled_objects_are_refused(tmp_path: Path, value: object) -> None:
    path = save({"state_dict": make_state(), "args": value}, tmp_path)
    assert "pickled objects" in message_of(build_model("resnet20", 10), path)


@pytest.mark.parametrize("value", [{}, [1, 2], torch.zeros(3), {"epoch": 3}, {"model": {"conv1": "text"}}])
def test_a_file_without_weights(tmp_path: Path, value: object) -> None:
    assert "no weights in" in message_of(build_model("resnet20", 10), save(value, tmp_path))
