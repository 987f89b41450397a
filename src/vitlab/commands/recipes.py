"""The command `vitlab recipes`: the list of recipes, and every field of one."""

from typing import Annotated

from rich.table import Table
from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.recipe_fields import MEANINGS, command_of, fields_of, remarks_on
from vitlab.commands.terminal import console, flag, print_json
from vitlab.commands.words import Flag
from vitlab.counting import count_recipes
from vitlab.paper.recipes.augreg import LEVELS
from vitlab.paper.recipes.named import find_recipe
from vitlab.recipe import Recipe


def recipes(name: Annotated[str, Flag("[NAME]", is_positional=True)] = "", json: flags.Json = False) -> None:
    """List the recipes with images seen, steps and exaFLOPs; with a name, show every field of that recipe as the flag
    to type: `vitlab recipes cifar10`, `vitlab recipes ViT-B/16@imagenet21k`, `vitlab recipes quick`.

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
    _print_table("vitlab pretrain NAME --data SPEC", before)
    _print_table("vitlab finetune MODEL --data SPEC --recipe NAME", after)
    for line in (
        "Every field is a flag: --schedule.peak 3e-4 --optimizer.weight-decay 0.1 --batch 256",
        "vitlab recipes NAME shows every field of a recipe with its value and meaning: vitlab recipes quick",
        f"After -augreg a level of augmentation may follow, such as -augreg-strong1: {', '.join(LEVELS)}",
    ):
        console().print(line, highlight=False)


def _show_fields(recipe: Recipe, json: bool) -> None:
    """Print the fields of one recipe as flags, with values that can be typed back."""
    fields = [(flag(field), value, MEANINGS[field]) for field, value in fields_of(recipe).items()]
    if json:
        rows = [dict(zip(("flag", "value", "meaning"), row, strict=True)) for row in fields]
        print_json({"recipe": recipe.name, "source": recipe.source, "command": command_of(recipe), "fields": rows})
        return
    table = Table(title=f"{recipe.name}: {recipe.source}", title_justify="left", box=None, header_style="bold")
    for heading in ("flag", "value", "meaning"):
        table.add_column(heading, no_wrap=heading == "flag")
    for row in fields:
        table.add_row(*map(Text, row))
    console().print(table)
    for line in ("", command_of(recipe), *remarks_on(recipe)):
        console().print(Text(line), soft_wrap=True)


def _print_table(title: str, rows: list[dict[str, object]]) -> None:
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in rows[0]:
        table.add_column(
            name.replace("_", " "), justify="left" if name in ("recipe", "source", "optimizer") else "right"
        )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console().print(table)
    console().print()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 10 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
