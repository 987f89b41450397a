"""Every recipe by its name."""

import difflib
from typing import Final

from vitlab.errors import did_you_mean
from vitlab.paper.names import meant
from vitlab.paper.recipes.finetuning import QUICK, finetuning_names, finetuning_recipe, quick_recipe
from vitlab.paper.recipes.pretraining import pretraining_names, pretraining_recipe
from vitlab.require import check_arguments
from vitlab.spec.recipe import Recipe

QUICK_IMAGES: Final = 1000  # of the example that stands for `quick`, which depends on the data and the model
QUICK_SIZE: Final = (224, 224)


def list_recipes() -> list[str]:
    """List the names of all recipes: pre-training as MODEL@DATA, fine-tuning by its data, and `quick`."""
    return [*pretraining_names(), *finetuning_names(), QUICK]


def find_recipe(name: str) -> Recipe:
    """Return a recipe by its name; the error for an unknown name suggests similar ones.

    `quick` depends on data and model: it is returned for 1,000 images of 224 pixels.
    """
    check_arguments(find_recipe, locals())
    if name == QUICK:
        return quick_recipe(QUICK_IMAGES, QUICK_SIZE)
    if name in finetuning_names():
        return finetuning_recipe(name)
    if "@" in name:
        return pretraining_recipe(name)
    models, names = meant(name), list_recipes()
    begun = [known for known in names if [known.partition("@")[0]] == models]
    near = begun or difflib.get_close_matches(name, names)
    raise ValueError(f"no recipe is named {name!r:.80}; {did_you_mean(near)}vitlab recipes lists all")
