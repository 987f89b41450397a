"""vitlab recipes: what there is, and every field of one."""

import dataclasses
import difflib
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from vitlab.commands.recipe_fields import MEANINGS, fields_of
from vitlab.commands.terminal import console, flag, print_json
from vitlab.counting import training_exaflops
from vitlab.paper.models import list_models, model_spec
from vitlab.paper.names import meant
from vitlab.paper.pretraining import DATA
from vitlab.paper.recipes.augreg import LEVELS
from vitlab.paper.recipes.finetuning import (
    QUICK,
    QUICK_EPOCHS,
    QUICK_LEAST,
    development_share,
    finetuning_names,
    finetuning_recipe,
    quick_recipe,
)
from vitlab.paper.recipes.pretraining import (
    pretraining_data,
    pretraining_head,
    pretraining_model,
    pretraining_names,
    pretraining_recipe,
)
from vitlab.recipe import Recipe

QUICK_IMAGES, QUICK_SIZE = 1000, (224, 224)  # an example: this recipe depends on the data and the model
OF_THE_DATA = {"kind", "image", "classes", "head", "conventions"}  # fields of a model that others decide
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")]


def recipes(name: Name = "", json: bool = False) -> None:
    """List the recipes of the paper, with images seen, steps and exaFLOPs; with a name, every field of that recipe as
    the flag to type: `vitlab recipes cifar10`, `vitlab recipes ViT-B/16@imagenet21k`, `vitlab recipes quick`.

    Args:
        name: A recipe whose fields to show.
        json: Print JSON instead of tables.
    """
    if name:
        _show_fields(name, json)
        return
    before, after = [_pretraining_entry(name) for name in pretraining_names()], []
    for listed in finetuning_names():
        recipe = finetuning_recipe(listed)
        share = development_share(listed)
        after.append({"recipe": listed, **_numbers(recipe), "held_out": share, "source": recipe.source})
    after.append(_quick_entry())
    if json:
        print_json({"pretrain": before, "finetune": after})
        return
    _print_table("vitlab pretrain NAME --data SPEC", before)
    _print_table("vitlab finetune MODEL --data SPEC --recipe NAME", after)
    for line in (
        "Any field is a flag: --schedule.peak 3e-4 --optimizer.weight-decay 0.1 --batch 256",
        "vitlab recipes NAME shows every field of one with its value and meaning, such as: vitlab recipes quick",
        f"After -augreg a level of augmentation may follow, as -augreg-strong1: {', '.join(LEVELS)}",
    ):
        console().print(line, highlight=False)


def _show_fields(name: str, json: bool) -> None:
    """The fields of one recipe as flags, with values that can be typed back."""
    recipe, command = _found(name)
    fields = [(flag(field), value, MEANINGS[field]) for field, value in fields_of(recipe).items()]
    if json:
        rows = [dict(zip(("flag", "value", "meaning"), row, strict=True)) for row in fields]
        print_json({"recipe": name, "source": recipe.source, "command": command, "fields": rows})
        return
    table = Table(title=f"{name}: {recipe.source}", title_justify="left", box=None, header_style="bold")
    for heading in ("flag", "value", "meaning"):
        table.add_column(heading, no_wrap=heading == "flag")
    for row in fields:
        table.add_row(*map(Text, row))
    console().print(table)
    for line in ("", command, *_remarks(name)):
        console().print(Text(line), soft_wrap=True)


def _found(name: str) -> tuple[Recipe, str]:
    """The recipe of a name, and the command that takes it."""
    if name in (*finetuning_names(), QUICK):
        recipe = quick_recipe(QUICK_IMAGES, QUICK_SIZE) if name == QUICK else finetuning_recipe(name)
        return recipe, f"vitlab finetune MODEL --data SPEC --recipe {name} --batch 64"
    if "@" in name:
        return pretraining_recipe(name), f"vitlab pretrain {name} --data SPEC --batch 256"
    names = [*finetuning_names(), QUICK, *pretraining_names()]
    models = meant(name)
    begun = [known for known in names if [known.partition("@")[0]] == models]
    near = begun or difflib.get_close_matches(name, names)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"no recipe is named {name!r:.80}; {hint}vitlab recipes lists all")


def _remarks(name: str) -> list[str]:
    if name == QUICK:
        return [
            f"This is for {QUICK_IMAGES:,} images and a model of {QUICK_SIZE[0]} pixels: batch and steps follow your "
            f"data ({QUICK_EPOCHS} epochs, at least {QUICK_LEAST} steps), the resolution is the model's. The run stops "
            "sooner when the training loss has settled, unless --epochs or --schedule.total sets its length. It is the "
            "default where there is no accelerator."
        ]
    if "@" not in name:
        return []
    spec = model_spec(pretraining_model(name))
    fields = [field.name for field in dataclasses.fields(spec) if field.name not in OF_THE_DATA]
    return [f"Fields of the model are flags too, such as --model.layers 4: {', '.join(fields)}".replace("_", "-")]


def _quick_entry() -> dict[str, object]:
    """The recipe of a CPU, whose length and resolution nobody knows without data and model."""
    recipe = quick_recipe(QUICK_IMAGES, QUICK_SIZE)
    unknown = dict.fromkeys(("images", "steps", "pixels"))
    source = f"{recipe.source}; {QUICK_EPOCHS} epochs, at least {QUICK_LEAST} steps; the default without an accelerator"
    share = development_share(QUICK)
    return {"recipe": QUICK, **_numbers(recipe), **unknown, "held_out": share, "source": source}


def _pretraining_entry(name: str) -> dict[str, object]:
    recipe = pretraining_recipe(name)
    data = DATA[pretraining_data(name)]
    model = pretraining_model(name)
    entry = {"recipe": name, **_numbers(recipe), "exaflops": None, "source": recipe.source}
    if model in list_models():
        classes = data.classes if recipe.masking is None else 0
        spec = model_spec(model, image=recipe.image, classes=classes, head=pretraining_head(name))
        entry["exaflops"] = training_exaflops(spec, recipe.batch * recipe.schedule.total)
    return entry


def _numbers(recipe: Recipe) -> dict[str, object]:
    steps = recipe.schedule.total
    return {
        "images": steps * recipe.batch,
        "steps": steps,
        "batch": recipe.batch,
        "pixels": recipe.image[0],
        "optimizer": recipe.optimizer.kind,
        "peak": recipe.schedule.peak,
    }


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
