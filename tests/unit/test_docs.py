import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

from ddltrain.comm.launch import find_mpiexec, mpiexec_command
from ddltrain.recipe import Recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_of_a_recipe_is_explained() -> None:
    text = (DOCS / "recipes.md").read_text()
    keys = [
        f"`{section}.{entry.name}`"
        for section, kind in get_type_hints(Recipe).items()
        for entry in dataclasses.fields(kind)
    ]
    assert [key for key in keys if key not in text] == []


def test_the_example_of_the_engine_runs(tmp_path: Path) -> None:
    text = (DOCS / "engine.md").read_text()
    program = tmp_path / "example.py"
    program.write_text(text.partition("```python\n")[2].partition("```")[0])
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, 2)
    done = subprocess.run(
        [*words, sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=DOCS.parent,
        env=os.environ | environment | {"PYTHONPATH": str(DOCS.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:4] for line in lines] == [["0", "10.0", "0.5", "1.0"], ["1", "10.0", "0.5", "1.0"]]
