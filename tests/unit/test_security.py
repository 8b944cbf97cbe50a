"""Files from strangers run no code, and nothing in this package could run some by accident."""

import ast
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import ddltrain
from ddltrain.errors import CheckpointError, DdltrainError, RecipeError
from ddltrain.nets import build_model, load_weights
from ddltrain.recipe import parse_recipe
from ddltrain.train.checkpoint import parse_checkpoint, read_newest

PACKAGE = Path(ddltrain.__file__).parent
# Where a file of the user's own is run, because the user names it.
RUN_ON_PURPOSE = {"nets/user_model.py": {"exec_module"}}
RECIPE = '[model]\nname = "resnet20"\n[train]\nepochs = 1\nbatch_per_rank = 8\n[optim]\nlr_base = 0.1\n[schedule]\nkind = "cosine"\n'


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.mark.parametrize("entry", ["model", "extra"])
def test_a_checkpoint_runs_no_code(entry: str, trace: Path, tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save({"format": 1, "model": {}, entry: Bomb(trace)}, file)
    with pytest.raises(CheckpointError):
        parse_checkpoint(file.getvalue(), "its name")
    (tmp_path / "step-00000001.pt").write_bytes(file.getvalue())
    with pytest.raises(CheckpointError):
        read_newest(tmp_path, lambda text: None)
    assert not trace.exists()


def test_weights_run_no_code(trace: Path, tmp_path: Path) -> None:
    torch.save({"conv1.weight": Bomb(trace)}, tmp_path / "weights.pt")
    with pytest.raises(DdltrainError):
        load_weights(build_model("resnet20", 10), tmp_path / "weights.pt")
    assert not trace.exists()


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs=__import__('os').mkdir({trace!r})",
        "train.epochs=${{mkdir {trace}}}",
        "data.mean=[__import__('os').mkdir({trace!r})]",
        "model.name=__import__('os').mkdir({trace!r})",
    ],
)
def test_a_recipe_runs_no_code(override: str, trace: Path) -> None:
    text = override.format(trace=str(trace))
    try:
        recipe = parse_recipe(RECIPE, "its name", [text])
    except RecipeError:
        recipe = None
    if recipe:
        with pytest.raises(RecipeError):
            build_model(recipe.model.name, 10)
    assert not trace.exists()


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    dangerous = {"eval", "exec", "compile", "exec_module", "system", "popen"}
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            words = ast.unparse(node.func)
            last = words.rpartition(".")[2]
            is_builtin = isinstance(node.func, ast.Name) or words.startswith("os.") or last == "exec_module"
            keys = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            is_bad = (
                (last in dangerous and is_builtin)
                or words in ("pickle.load", "pickle.loads", "yaml.load", "marshal.loads")
                or (words == "torch.load" and keys.get("weights_only") != "True")
                or (words == "np.load" and keys.get("allow_pickle") == "True")
                or keys.get("shell") == "True"
            )
            if is_bad and last not in RUN_ON_PURPOSE.get(name, set()):
                found.append(f"{name}:{node.lineno} {words}")
    assert found == []
