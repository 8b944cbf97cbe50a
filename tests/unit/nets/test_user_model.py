"""A user's own model from a file, and every way it can go wrong."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ddltrain.errors import RecipeError
from ddltrain.nets import build_model

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Options:
    width: int = 4

def small_net(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, Options().width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(Options().width, num_classes))

def wrong_type(num_classes):
    return [num_classes]

def fails(num_classes):
    return layer(num_classes)

def layer(size):
    raise KeyError(f"no layer {size}")

def leaves(num_classes):
    raise SystemExit(3)

def takes_none():
    return nn.Identity()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_nets.py"
    path.write_text(GOOD)
    return path


def message_of(name: str, zero_init_residual: bool = False) -> str:
    with pytest.raises(RecipeError) as caught:
        build_model(name, 5, zero_init_residual)
    assert name in str(caught.value)
    return str(caught.value)


def test_builds_the_function_s_module(file: Path) -> None:
    model = build_model(f"{file}:small_net", 5)
    assert model(torch.zeros(2, 3, 9, 7)).shape == (2, 5)


def test_relative_path_counts_from_the_current_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert isinstance(build_model("my_nets.py:small_net", 5), nn.Module)


def test_file_hides_no_installed_module(tmp_path: Path) -> None:
    path = tmp_path / "torch.py"
    path.write_text("def net(n):\n    import torch\n    return torch.nn.Linear(n, n)\n")
    assert isinstance(build_model(f"{path}:net", 2), nn.Linear)


@pytest.mark.parametrize("name", ["nets.py", "some/folder/net:function", "nets.py:", ":function"])
def test_malformed_name_shows_the_form(name: str) -> None:
    assert 'write "path/to/file.py:function"' in message_of(name)


def test_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.py"
    assert f"no such file: {path}" in message_of(f"{path}:net")


def test_no_such_function_names_the_nearest(file: Path) -> None:
    assert 'no function "smallnet"; did you mean "small_net"?' in message_of(f"{file}:smallnet")


def test_no_such_function_lists_those_there_are(file: Path) -> None:
    file.write_text("def first(n): ...\ndef second(n): ...\nvalue = 3\n")
    assert "it has: first, second" in message_of(f"{file}:zzz")
    assert 'no function "value"' in message_of(f"{file}:value")


def test_error_inside_keeps_the_user_s_traceback(file: Path) -> None:
    message = message_of(f"{file}:fails")
    first, *rest = message.splitlines()
    assert "fails(5) raised KeyError: 'no layer 5'" in first
    assert "in fails" in "\n".join(rest)
    assert "in layer" in "\n".join(rest)
    assert "build_user_model" not in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import not_there_at_all", "the file raised ModuleNotFoundError"),
        ("def net(n:\n", "the file raised SyntaxError"),
        ("import sys; sys.exit(4)", "the file raised SystemExit: 4"),
    ],
)
def test_error_while_the_file_runs(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    message = message_of(f"{path}:net")
    assert reason in message.splitlines()[0]
    assert f'File "{path}", line 1' in message


def test_exit_inside_the_function(file: Path) -> None:
    assert "leaves(5) raised SystemExit: 3" in message_of(f"{file}:leaves")


def test_function_of_another_signature(file: Path) -> None:
    assert "takes_none(5) raised TypeError" in message_of(f"{file}:takes_none")


def test_wrong_return_type(file: Path) -> None:
    assert "wrong_type returned a list, it must return an nn.Module" in message_of(f"{file}:wrong_type")


def test_zero_init_residual_is_refused(file: Path) -> None:
    assert "model.zero_init_residual" in message_of(f"{file}:small_net", zero_init_residual=True)
