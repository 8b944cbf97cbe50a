from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddltrain.errors import RecipeError
from ddltrain.recipe import Recipe, parse_recipe, read_recipe

REPOSITORY = Path(__file__).parents[2]
MINIMAL = """
[model]
name = "resnet20"
[train]
epochs = 3
batch_per_rank = 8
[optim]
lr_base = 0.1
[schedule]
kind = "cosine"
"""


def parse(text: str = MINIMAL, *overrides: str) -> Recipe:
    return parse_recipe(text, "my.toml", overrides)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "models").glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_recipe_in_models_is_valid_and_survives_a_round_trip(file: Path) -> None:
    recipe = read_recipe(file)
    assert parse_recipe(recipe.to_toml(), "again") == recipe


def test_missing_keys_take_their_defaults() -> None:
    recipe = parse()
    assert recipe.data.image_size == 224
    assert recipe.optim.momentum == 0.9
    assert recipe.checkpoint.keep == 3


def test_overrides_replace_values_and_data_is_short_for_its_path() -> None:
    recipe = parse(
        MINIMAL, "train.epochs=7", "data=/some/where", "data.crop_scale=[0.2, 1]", "model.name=a.py:f"
    )
    assert recipe.train.epochs == 7
    assert recipe.data.path == "/some/where"
    assert recipe.data.crop_scale == (0.2, 1.0)
    assert recipe.model.name == "a.py:f"
    odd = parse(
        MINIMAL,
        "data=2024-01-01",
        "model.weights=7",
        "train.label_smoothing=.5",
        "optim.lr_base=1e-3",
        'model.name="x"',
    )
    assert (odd.data.path, odd.model.weights, odd.model.name) == ("2024-01-01", "7", "x")
    assert (odd.train.label_smoothing, odd.optim.lr_base) == (0.5, 0.001)


@given(st.floats(1e-9, 1e9), st.integers(1, 100000), st.text(min_size=1))
def test_resolved_recipe_reads_back_equal(lr_base: float, epochs: int, name: str) -> None:
    recipe = parse(MINIMAL, f"optim.lr_base={lr_base!r}", f"train.epochs={epochs}")
    object.__setattr__(recipe.model, "name", name)
    assert parse_recipe(recipe.to_toml(), "again") == recipe


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epoch=3", ["command line", "train.epoch", '"train.epochs"']),
        ("optm.lr_base=3", ["unknown section", "optm", '"optim"']),
        ("train.epochs=0", ["command line", "train.epochs", "0", "1 to 100000"]),
        ("train.epochs=1.5", ["train.epochs", "1.5", "whole number"]),
        ("train.epochs=true", ["train.epochs", "whole number"]),
        ("train.epochs=many", ["train.epochs", "many", "whole number"]),
        ("data.flip=1", ["data.flip", "true or false"]),
        ("optim.lr_base=nan", ["optim.lr_base", "finite"]),
        ("optim.lr_base=inf", ["optim.lr_base", "finite"]),
        (f"optim.lr_base=1{'0' * 400}", ["optim.lr_base", "finite"]),
        ("optim.momentum=1", ["optim.momentum", "not including 1"]),
        ("schedule.kind=cosin", ["schedule.kind", '"cosine"']),
        ("data.mean=[0.5]", ["data.mean", "3 numbers"]),
        ("data.mean=0.5", ["data.mean", "not a list"]),
        ("data.std=[0.5, 0, 1]", ["data.std", "above 0"]),
        ("schedule.milestones=[3, 1]", ["schedule.milestones", "rising"]),
        ("data.eval_crop=1.5", ["data.eval_crop", "0.1 to 1"]),
        ("schedule.warmup_epochs=4", ["schedule.warmup_epochs", "longer"]),
        ("optim.momentum=0", ["optim.nesterov", "momentum"]),
        ("optim.kind=adam", ["optim.kind", '"lars"']),
        ("optim.trust=0", ["optim.trust", "above 0"]),
        ("optim.clip_norm=-1", ["optim.clip_norm", "0 or more"]),
        ("schedule.factors=[1, 2]", ["schedule.factors", "from 0 to 1"]),
        ("schedule.factors=[1, 0.1]", ["schedule.factors", "rmsprop-hybrid"]),
        ("bn.group=0", ["bn.group", "from 1"]),
        ("train.accumulate=0", ["train.accumulate", "from 1"]),
        ("train.ema=1", ["train.ema", "not including 1"]),
        ("data.mixup=-1", ["data.mixup", "from 0"]),
        ("data.cutmix=x", ["data.cutmix", "a number"]),
        ("data.color_jitter=1", ["data.color_jitter", "not including 1"]),
        ("data.lighting=-0.1", ["data.lighting", "from 0"]),
        ("data.randaugment=[2]", ["data.randaugment", "magnitude"]),
        ("data.progressive_size=[[0, 128], [0, 192]]", ["data.progressive_size", "rising epochs"]),
        ("data.progressive_size=[128]", ["data.progressive_size", "list of lists"]),
        ("data.progressive_size=[[0, 288]]", ["data.progressive_size", "288", "data.image_size"]),
        ("train.epochs", ["train.epochs", "section.key=value"]),
        ("epochs=3", ["epochs=3", "section.key=value"]),
    ],
)
def test_a_wrong_override_names_key_value_and_way_out(override: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(MINIMAL, override)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optim.kind=lars"], ["optim.kind", "sgd"]),
        (["schedule.warmup_epochs=1"], ["schedule.warmup_epochs=0"]),
        (["schedule.milestones=[1]"], ["0 numbers for 1 schedule.milestones"]),
        (["schedule.factors=[1]", "schedule.milestones=[1]"], ["1 numbers for 1"]),
    ],
)
def test_the_hybrid_refuses_what_contradicts_it(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(MINIMAL, "schedule.kind=rmsprop-hybrid", *overrides)
    assert [word for word in words if word not in str(caught.value)] == []


def test_lists_of_pairs_read_back_equal() -> None:
    recipe = parse(MINIMAL, "data.progressive_size=[[0, 128], [10, 192]]", "data.randaugment=[2, 9]")
    assert recipe.data.progressive_size == ((0, 128), (10, 192))
    assert recipe.data.randaugment == (2, 9)
    assert parse_recipe(recipe.to_toml(), "again") == recipe


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL.replace("epochs = 3", "epochs = -3"), ["my.toml", "train.epochs", "-3"]),
        (MINIMAL.replace("epochs = 3", ""), ["my.toml", "train.epochs is missing"]),
        (MINIMAL.replace("[optim]", "[optimizer]"), ["my.toml", "optimizer", '"optim"']),
        ("model = 3\n" + MINIMAL.replace('[model]\nname = "resnet20"', ""), ["my.toml", "model is a table"]),
        ("[model\n", ["my.toml", "line 1"]),
        ("", ["my.toml", "model.name is missing"]),
    ],
)
def test_a_wrong_file_names_itself(text: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_missing_file_says_where_recipes_are(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="models/"):
        read_recipe(tmp_path / "none.toml")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe at"):
        read_recipe(tmp_path)


@pytest.mark.parametrize(
    ("override", "key"),
    [("comm.algorithm=ring", 'comm.algorithm="ring"'), ("comm.check=true", "comm.check=true")],
)
def test_sums_by_torch_refuse_what_contradicts_them(override: str, key: str) -> None:
    with pytest.raises(
        RecipeError, match=rf'comm.local = "torch" .* leave out {key}, or set comm.local="engine"'
    ):
        parse(MINIMAL, "comm.local=torch", override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["comm.error_feedback=true"], 'set comm.wire="bf16", or leave it out'),
        (
            ["comm.error_feedback=true", "comm.wire=bf16", "train.precision=fp16"],
            'loss scale of train.precision = "fp16"',
        ),
    ],
)
def test_error_feedback_refuses_what_contradicts_it(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(MINIMAL, *overrides)
