"""vitlab recipes: the list, and the fields of one recipe as flags."""

import json

import pytest

from vitlab.cli import main
from vitlab.commands.recipe_fields import MEANINGS, fields_of
from vitlab.counting import exaflops
from vitlab.files.strict_json import to_json
from vitlab.paper.recipes.finetuning import finetuning_names, finetuning_recipe, quick_recipe
from vitlab.paper.recipes.pretraining import MASKED, pretraining_names, pretraining_recipe, rows_by_name
from vitlab.paper.results import TABLE_6
from vitlab.spec.changes import with_fields


def every_recipe():
    return [
        *map(pretraining_recipe, pretraining_names()),
        *map(finetuning_recipe, finetuning_names()),
        quick_recipe(1000, (224, 196)),
    ]


def leaves(values, path=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_field_of_every_recipe_is_listed_and_means_something():
    named = set()
    for recipe in every_recipe():
        fields = set(leaves(to_json(recipe))) - {"name", "source", "masking"}
        fields = fields - {"optimizer.kind"} | {"optimizer"}
        assert set(fields_of(recipe)) == fields
        named |= fields
    assert named == set(MEANINGS)


def test_what_is_listed_can_be_typed_back():
    for recipe in every_recipe():
        values = fields_of(recipe)
        del values["optimizer"]  # brings the defaults of its kind
        assert with_fields(recipe, values.items()) == recipe


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        ("cifar10", "--schedule.total", "10000"),  # table 4
        ("ViT-B/16@imagenet21k", "--optimizer.weight-decay", "0.03"),  # table 3
        ("quick", "--batch", "64"),
        (MASKED, "--masking.corrupted", "0.5"),  # appendix B.1.2
    ],
)
def test_the_fields_of_one_recipe_as_table_and_as_json(name, flag, value, capsys):
    assert main(["recipes", name]) == 0
    table = capsys.readouterr().out
    assert main(["recipes", name, "--json"]) == 0
    fields = {row["flag"]: row for row in json.loads(capsys.readouterr().out)["fields"]}
    assert fields[flag]["value"] == value
    line = next(line for line in table.splitlines() if line.split()[:1] == [flag])
    assert line.split()[1] == value
    assert fields[flag]["meaning"] in line


def test_quick_stands_in_the_list(capsys):
    assert main(["recipes"]) == 0
    table = capsys.readouterr().out
    assert any(line.split()[:1] == ["quick"] for line in table.splitlines())
    assert "vitlab recipes NAME" in table
    assert "--optimizer.weight-decay" in table


def test_the_exaflops_of_the_list_are_those_of_counting_and_of_table_6(capsys):
    assert main(["recipes", "--json"]) == 0
    listed = {row["recipe"]: row["exaflops"] for row in json.loads(capsys.readouterr().out)["pretrain"]}
    runs = {
        (name.partition("@")[0], epochs): listed[name]
        for name, (row, epochs, _) in rows_by_name().items()
        if row.data == "JFT-300M"
    }
    within = 0
    for run, _ in TABLE_6.rows:
        assert runs[run] == pytest.approx(exaflops(*run), rel=2e-6)  # a run ends with a whole step
        within += abs(runs[run] / TABLE_6[run, "exaFLOPs"] - 1) <= 0.01
    assert within == 15
    assert len(TABLE_6.rows) == 18


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar11", "cifar10"),
        ("vit-h/14", "ViT-H/14@jft300m"),
        ("vit-b/32", "ViT-B/32@"),
        ("resnet50", "R50x1@jft300m"),
    ],
)
def test_a_name_that_is_no_recipe_is_told_with_the_nearest(name, near, capsys):
    assert main(["recipes", name]) == 2
    told = capsys.readouterr().err
    assert f"no recipe is named '{name}'" in told
    assert near in told


def test_a_recipe_or_release_of_a_misspelt_model_is_that_of_the_model_meant(capsys):
    assert main(["pretrain", "resnet50@jft300m", "--data", "digits"]) == 2
    told = capsys.readouterr().err
    assert "did you mean R50x1@jft300m or R50x1@jft300m-sgd? R50x1 alone gets the row" in told
    assert main(["download", "resnet50"]) == 2
    assert "did you mean BiT-S-R50x1, BiT-M-R50x1 or " in capsys.readouterr().err
