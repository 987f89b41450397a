"""The command `vitlab recipes`: the list of recipes, and every field of one."""

from typing import Annotated

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.recipe_fields import MEANINGS, command_of, fields_of, remarks_on
from vitlab.commands.terminal import console, print_json, print_rows
from vitlab.counting import count_recipes
from vitlab.errors import flag
from vitlab.paper.recipes.augreg import LEVELS
from vitlab.paper.recipes.named import find_recipe
from vitlab.spec.recipe import Recipe


def recipes(name: Annotated[str, Flag("[NAME]", is_positional=True)] = "", json: flags.Json = False) -> None:
    """List the recipes with images seen, steps and exaFLOPs; with a name, show every field of that recipe as the flag
    to type. Examples: `vitlab recipes cifar10`, `vitlab recipes ViT-B/16@imagenet21k`, `vitlab recipes quick`.

    Args:
        name: The recipe whose fields to show.
    """
    if name:
        _show_fields(find_recipe(name), json)
        return
    before, after = count_recipes()
    if json:
        print_json({"pretrain": before, "finetune": after})
        return
    print_rows(before, "vitlab pretrain NAME --data SPEC")
    console().print()
    print_rows(after, "vitlab finetune MODEL --data SPEC --recipe NAME")
    for line in (
        "",
        "Every field is a flag: --schedule.peak 3e-4 --optimizer.weight-decay 0.1 --batch 256",
        "vitlab recipes NAME shows every field of a recipe with its value and meaning: vitlab recipes quick",
        f"After -augreg a level of augmentation may follow, such as -augreg-strong1: {', '.join(LEVELS)}",
    ):
        console().print(line, highlight=False)


def _show_fields(recipe: Recipe, json: bool) -> None:
    """Print the fields of one recipe as flags, with values that can be typed back."""
    rows = [
        {"flag": flag(field), "value": value, "meaning": MEANINGS[field]} for field, value in fields_of(recipe).items()
    ]
    if json:
        print_json({"recipe": recipe.name, "source": recipe.source, "command": command_of(recipe), "fields": rows})
        return
    print_rows(rows, f"{recipe.name}: {recipe.source}")
    for line in ("", command_of(recipe), *remarks_on(recipe)):
        console().print(Text(line), soft_wrap=True)
