"""Recipes as values: what is refused, and fields set by text as strictly as by code."""

import dataclasses
import operator
import re
from functools import partial

import numpy as np
import pytest

from vitlab.errors import InvalidValue
from vitlab.files.strict_json import from_json, to_json
from vitlab.paper.recipes.finetuning import finetuning_names, finetuning_recipe
from vitlab.paper.recipes.pretraining import pretraining_names, pretraining_recipe
from vitlab.spec.changes import flattened, with_fields
from vitlab.spec.recipe import SGD, AdamW, Distillation, Execution, Masking, Recipe, Schedule

PLAIN = finetuning_recipe("cifar10")


@pytest.mark.parametrize("name", pretraining_names())
def test_a_pretraining_recipe_survives_json(name):
    recipe = pretraining_recipe(name)
    assert from_json(Recipe, to_json(recipe)) == recipe


@pytest.mark.parametrize("name", finetuning_names())
def test_a_finetuning_recipe_survives_json(name):
    recipe = finetuning_recipe(name)
    assert from_json(Recipe, to_json(recipe)) == recipe


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("batch", "64", 64),
        ("average", "0.999", 0.999),
        ("average", "none", None),
        ("frozen", "patches,blocks.0", ("patches", "blocks.0")),
        ("class_weights", "balanced", "balanced"),
        ("class_weights", "none", "none"),
        ("optimizer", "adamw", AdamW()),
        ("image", "384x512", (384, 512)),
        ("image", "224", (224, 224)),
    ],
)
def test_a_field_is_set_by_text(field, text, value):
    assert getattr(with_fields(PLAIN, [(field, text)]), field) == value


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch": 64, "frozen": ("backbone",)}, {"batch": 64, "frozen": ("backbone",)}),
        ({"schedule": {"peak": 3e-3, "warmup": 10}}, {"schedule.peak": 3e-3, "schedule.warmup": 10}),
        ({"schedule.peak": np.float32(0.5), "batch": np.int64(8)}, {"schedule.peak": 0.5, "batch": 8}),
        ({"optimizer": AdamW(weight_decay=0.3)}, {"optimizer": AdamW(weight_decay=0.3)}),
        ({"optimizer": AdamW(), "optimizer.clip": 2}, {"optimizer": AdamW(clip=2.0)}),
        (
            {"image": 64, "average": None, "augmentation": {"flip": False}},
            {"image": (64, 64), "augmentation.flip": False},
        ),
        (
            {"image": (32, 64), "optimizer": "adamw", "batch": "64"},
            {"image": (32, 64), "optimizer": AdamW(), "batch": 64},
        ),
    ],
)
def test_fields_are_set_by_python_values(changes, expected):
    recipe = with_fields(PLAIN, flattened(changes))
    for field, value in expected.items():
        found = operator.attrgetter(field)(recipe)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"schedule": {"peak": "high"}}, "schedule.peak", "is 'high'; expected a number"),
        ({"schedule": {"peek": 1}}, "schedule.peek", "did you mean schedule.peak?"),
        ({"batch": 1.5}, "batch", "is 1.5; expected a whole number"),
        ({"batch": None}, "batch", "is None; expected a whole number"),
        ({"schedule": 3}, "schedule", "is 3; expected an object"),
        ({"optimizer": {"betas": (0.9, "b")}}, "optimizer.betas[1]", "is 'b'; expected a number"),
        ({"frozen": ("head", 3)}, "frozen[1]", "is 3; expected a string"),
    ],
)
def test_a_wrong_python_value_names_its_field(changes, field, problem):
    recipe = with_fields(PLAIN, [("optimizer", "adamw")])
    with pytest.raises(InvalidValue, match=re.escape(problem)) as caught:
        with_fields(recipe, flattened(changes))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} ")


def test_a_wrong_value_in_a_file_names_its_path_and_the_file():
    values = to_json(PLAIN)
    values["schedule"] = {**to_json(PLAIN.schedule), "total": "many"}
    with pytest.raises(
        InvalidValue, match=r"^run\.json\.schedule\.total is 'many'; expected a whole number$"
    ) as caught:
        from_json(Recipe, values, "run.json")
    assert (caught.value.field, caught.value.of) == ("schedule.total", "run.json")


def test_a_dotted_field_changes_only_itself():
    changed = with_fields(PLAIN, [("schedule.peak", "3e-4"), ("augmentation.crop", "none")])
    assert changed.schedule == dataclasses.replace(PLAIN.schedule, peak=3e-4)
    assert changed.augmentation == dataclasses.replace(PLAIN.augmentation, crop="none")
    assert dataclasses.replace(changed, schedule=PLAIN.schedule, augmentation=PLAIN.augmentation) == PLAIN


def test_fields_that_depend_on_each_other_may_come_in_any_order():
    changes = [("schedule.warmup", "20000"), ("schedule.total", "40000")]  # either alone would be refused or wrong
    assert with_fields(PLAIN, changes) == with_fields(PLAIN, changes[::-1])


@pytest.mark.parametrize(
    ("field", "text", "complaint"),
    [
        ("schedule.peek", "1", "schedule.peek does not exist; schedule has the fields peak, total, warmup"),
        ("sched", "1", "sched does not exist; Recipe has the fields name, source, batch"),
        ("batch.size", "1", "batch.size does not exist; batch has no fields"),
        ("batch", "many", "batch is 'many'; expected a whole number"),
        ("batch", "0", "batch 0 is outside 1.."),
        ("schedule", "1", "schedule is a group of fields; set one of them, such as schedule.peak"),
        ("optimizer", "lion", "known are adamw, sgd"),
        ("optimizer.kind", "adamw", "unknown keys"),
        ("loss", "hinge", "allowed are 'sigmoid', 'softmax'"),
        ("image", "big", "give one side (384)"),
        (
            "schedule.total",
            "500",
            "the 500 total steps must be more than the 500 steps of warm-up; set schedule.warmup, for example to 50",
        ),
        ("patience", "3", "set validate_every to a number of steps"),
        ("optimizer.clip", "-1", "clip -1.0 must be positive"),
        ("schedule.peak", "nan", "peak"),
    ],
)
def test_a_wrong_field_or_value_says_what_exists(field, text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        with_fields(PLAIN, [(field, text)])


@pytest.mark.parametrize(
    "values",
    [
        {"keep": 0},
        {"micro_batch": -1},
        {"workers": -2},
        {"max_bad": 1.5},
        {"precision": "fp16"},
        {"save_every": -5},
    ],
)
def test_an_execution_that_makes_no_sense_is_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Execution(**values)


MASKED = pretraining_recipe("ViT-B/16@jft300m-masked")


def test_masking_is_set_by_text_and_its_defaults_are_the_papers():
    assert MASKED.masking == Masking("mean-colour", 0.5, 0.8, 0.1, 0.1)
    changed = with_fields(MASKED, [("masking.corrupted", "0.3"), ("masking.target", "pixels")])
    assert changed == dataclasses.replace(MASKED, masking=Masking("pixels", 0.3, 0.8, 0.1, 0.1))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ([("masking.corrupted", "0")], "corrupted 0.0 is outside (0, 1]"),
        ([("masking.corrupted", "1.5")], "corrupted 1.5 is outside (0, 1]"),
        ([("masking.masked", "0.5")], "must add up to 1; set all three"),
        ([("masking.masked", "1.1"), ("masking.swapped", "-0.2")], "masked 1.1 is outside [0, 1]"),
        ([("masking.target", "edges")], "allowed are 'mean-colour', 'colours-4x4', 'pixels'"),
        ([("masking.share", "1")], "masking has the fields target, corrupted, masked, swapped, kept"),
        ([("masking", "none")], "masking is a group of fields"),
        ([("mixup", "0.2")], "masked patches have no labels; leave mixup at 0, not 0.2"),
        ([("loss", "sigmoid")], "leave loss at 'softmax', not 'sigmoid'"),
        ([("label_smoothing", "0.1")], "leave label_smoothing at 0"),
        ([("class_weights", "balanced")], "leave class_weights at 'none'"),
    ],
)
def test_a_masking_that_makes_no_sense_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        with_fields(MASKED, changes)


def test_masking_belongs_to_its_own_recipe():
    with pytest.raises(ValueError, match=r"masking.corrupted does not exist; masking has no fields"):
        with_fields(PLAIN, [("masking.corrupted", "0.3")])


def test_a_recipe_written_before_there_was_masking_still_reads():
    old = to_json(PLAIN)
    del old["masking"]
    assert from_json(Recipe, old) == PLAIN


def test_class_weights_belong_to_softmax():
    with pytest.raises(ValueError, match="class_weights"):
        dataclasses.replace(PLAIN, loss="sigmoid", class_weights="balanced")


def test_an_optimizer_of_another_kind_is_recognised_in_json():
    for optimizer in (AdamW(weight_decay=0.3), SGD(momentum=0.5)):
        recipe = dataclasses.replace(PLAIN, optimizer=optimizer)
        assert from_json(Recipe, to_json(recipe)).optimizer == optimizer
    with pytest.raises(ValueError, match="of kind 'lamb'; allowed are 'adamw', 'sgd'"):
        from_json(Recipe, to_json(PLAIN) | {"optimizer": {"kind": "lamb"}})


def test_a_schedule_shorter_than_its_warm_up_proposes_one():
    with pytest.raises(ValueError, match=r"set schedule\.warmup, for example to 7"):
        Schedule(peak=1.0, total=73, warmup=10_000)


WARM = {"peak": 1.0, "total": 10, "warmup": 2}
EDGES = [  # what makes it, a field, values that are just allowed, values that are just not, what the error says
    (Distillation, "weight", (0, 1, 0.3), (-0.001, 1.001), "weight"),
    (Distillation, "temperature", (1e-9, 1000), (0, 1000.001), "temperature"),
    (partial(Schedule, **WARM), "peak", (1e-5, 5), (0, 9e-6), "peak"),
    (partial(Schedule, **WARM), "end", (0, 1), (-1e-9, 1.001), "end"),
    (partial(Schedule, **WARM), "warmup", (0, 9), (-1, 10), "warm"),
    (AdamW, "betas", ((0, 0), (0.5, 0.99999)), ((-0.001, 0.9), (0.9, 1.0), (1.0, 0.9)), "betas"),
    (AdamW, "weight_decay", (0, 5), (-0.001,), "weight_decay"),
    (SGD, "momentum", (0, 0.99999), (-0.001, 1), "momentum"),
    (SGD, "clip", (None, 1e-9), (0, -1), "clip"),
    (partial(Masking, "pixels", masked=0.8, swapped=0.1, kept=0.1), "corrupted", (1e-9, 1), (0, 1.001), "corrupted"),
    (partial(dataclasses.replace, PLAIN), "batch", (1, 2**20), (0, 2**20 + 1), "batch"),
    (partial(dataclasses.replace, PLAIN), "label_smoothing", (0, 0.999), (-0.001, 1), "label_smoothing"),
    (partial(dataclasses.replace, PLAIN), "dropout", (0, 0.999), (-0.001, 1), "dropout"),
    (partial(dataclasses.replace, PLAIN), "stochastic_depth", (0, 0.999), (-0.001, 1), "stochastic_depth"),
    (partial(dataclasses.replace, PLAIN), "mixup", (0, 9), (-0.001,), "mixup"),
    (partial(dataclasses.replace, PLAIN), "cutmix", (0, 9), (-0.001,), "cutmix"),
    (partial(dataclasses.replace, PLAIN, batch=8), "shards", (1, 8), (0, 9), "shards"),
    (partial(dataclasses.replace, PLAIN), "average", (None, 1e-9, 0.99999), (0, 1), "average"),
    (partial(dataclasses.replace, PLAIN), "layer_decay", (1e-9, 1), (0, 1.001), "layer_decay"),
    (partial(dataclasses.replace, PLAIN), "validate_every", (0, 1), (-1,), "validate_every"),
    (partial(dataclasses.replace, PLAIN, validate_every=1), "patience", (0, 1), (-1,), "patience"),
    (partial(dataclasses.replace, PLAIN), "settle_window", (0, 1), (-1,), "settle_window"),
    (Execution, "micro_batch", (0, 1), (-1,), "micro_batch"),
    (Execution, "workers", (-1, 0, 1), (-2,), "workers"),
    (Execution, "save_every", (0, 1), (-1,), "save_every"),
    (Execution, "keep", (1, 2), (0,), "keep"),
    (Execution, "max_bad", (0, 1), (-0.001, 1.001), "max_bad"),
    (Execution, "timeout", (1, 2), (0.999,), "timeout"),
]


@pytest.mark.parametrize(("make", "field", "allowed", "refused", "complaint"), EDGES)
def test_every_bound_is_where_it_is_said_to_be(make, field, allowed, refused, complaint):
    annotated = next(f.type for f in dataclasses.fields(type(make(**{field: allowed[0]}))) if f.name == field)
    for value in allowed:
        value = float(value) if "float" in str(annotated) and type(value) is int else value
        assert getattr(make(**{field: value}), field) == value
    for value in refused:
        with pytest.raises(ValueError, match=complaint):
            make(**{field: float(value) if "float" in str(annotated) and type(value) is int else value})


def test_shares_of_masked_swapped_and_kept_patches_reach_from_nothing_to_all():
    for shares in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        assert Masking("pixels", 0.5, *shares).chosen(7) == 4
    for shares, name in (((1.2, -0.2, 0.0), "masked"), ((-0.2, 1.2, 0.0), "masked"), ((0.0, 1.2, -0.2), "swapped")):
        with pytest.raises(ValueError, match=f"{name} .* is outside"):
            Masking("pixels", 0.5, *shares)


def test_what_is_predicted_of_a_patch_has_the_sizes_of_the_paper():
    """B.1.2: one colour of 512, 4 x 4 of them, or all pixels."""
    sizes = [Masking(target, 0.5, 0.8, 0.1, 0.1).outputs(16) for target in ("mean-colour", "colours-4x4", "pixels")]
    assert sizes == [512, 16 * 512, 3 * 16 * 16]


def test_defaults_are_those_of_the_paper_and_of_deit():
    """Adam, SGD and the end of the decay as in the released code; distillation as in DeiT; nothing else is on."""
    assert AdamW() == AdamW("adamw", weight_decay=0.1, betas=(0.9, 0.999), epsilon=1e-8, decay="all", clip=None)
    assert SGD() == SGD("sgd", momentum=0.9, weight_decay=0.0, decay="all", clip=1.0)
    assert Schedule(**WARM).end == 1e-5
    assert Schedule(**WARM).decay == "linear"
    assert to_json(Distillation()) == {"kind": "hard", "weight": None, "temperature": 3.0}
    assert (Distillation("hard").share, Distillation("soft").share, Distillation("soft", 0.7).share) == (0.5, 0.1, 0.7)
    plain = Recipe("a", "b", 8, (32, 32), Schedule(**WARM), SGD())
    off = ("label_smoothing", "dropout", "stochastic_depth", "mixup", "cutmix", "validate_every", "patience")
    assert [getattr(plain, name) for name in off] == [0] * len(off)
    assert (plain.shards, plain.average, plain.layer_decay, plain.mixes) == (1, None, 1.0, False)
    assert Execution() == Execution(
        device="cpu",
        micro_batch=0,
        precision="fp32",
        recompute=False,
        compile=False,
        workers=0,
        save_every=0,
        keep=2,
        tensorboard=False,
        parallel="auto",
        exact_elastic=False,
        timeout=60.0,
    )


@pytest.mark.parametrize("options", [{"exact_elastic": True}, {"compile": True}])
def test_what_needs_the_whole_model_on_a_rank_excludes_fsdp(options):
    assert Execution(**options, parallel="ddp")
    with pytest.raises(ValueError, match="parallel='ddp'"):
        Execution(**options, parallel="fsdp")


def rates(decay, steps, **options):
    schedule = Schedule(peak=2.0, total=110, warmup=10, decay=decay, **options)
    return [schedule.learning_rate(step) for step in steps]


def test_the_rate_of_every_decay_is_its_closed_form():
    warm = [0.0, 1.0]
    assert rates("constant", (0, 5, 10, 60, 110, 200)) == pytest.approx([*warm, 2.0, 2.0, 2.0, 2.0])
    falling = [2.0, 1.3, 0.6, 0.6]  # halfway it is the mean of peak and end
    assert rates("linear", (10, 60, 110, 200), end=0.6) == pytest.approx(falling)
    assert rates("cosine", (10, 60, 110, 200), end=0.6) == pytest.approx(falling)
    quarter = 0.6 + 1.4 * (1 + 0.5**0.5) / 2
    assert rates("cosine", (35,), end=0.6) == pytest.approx([quarter])
    assert rates("linear", (5,), end=0.6) == pytest.approx([1.0])  # before the decay begins
    stairs = rates("staircase", (10, 40, 41, 80, 81), boundaries=(40, 80))
    assert stairs == pytest.approx([2.0, 2.0, 0.2, 0.2, 0.02])
    for decay, boundaries in (("linear", (5,)), ("staircase", ())):
        with pytest.raises(ValueError, match="boundaries are needed for the decay staircase"):
            Schedule(**WARM, decay=decay, boundaries=boundaries)
