import dataclasses
from pathlib import Path
from typing import get_type_hints

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
