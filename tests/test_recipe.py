"""Recipes as values: what is refused, and fields set by text as strictly as by code."""

import dataclasses
import re

import pytest

from vitlab.changes import with_fields
from vitlab.paper.finetuning_recipes import finetuning_names, finetuning_recipe
from vitlab.paper.pretraining_recipes import pretraining_names, pretraining_recipe
from vitlab.recipe import SGD, AdamW, Execution, Masking, Recipe, Schedule
from vitlab.strict_json import from_json, to_json

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
        ("schedule.peek", "1", "no 'peek' there; it has peak, total, warmup"),
        ("sched", "1", "no 'sched' there; it has name, source, batch"),
        ("batch.size", "1", "it has no parts"),
        ("batch", "many", "--batch 'many': a whole number is expected"),
        ("batch", "0", "batch 0 is outside 1.."),
        ("schedule", "1", "--schedule has parts; set one of them, such as --schedule.peak"),
        ("optimizer", "lion", "known are adamw, sgd"),
        ("optimizer.kind", "adamw", "unknown keys"),
        ("loss", "hinge", "allowed are 'sigmoid', 'softmax'"),
        ("image", "big", "write one side as 384"),
        ("schedule.total", "500", "500 steps in all are not more than 500 of warm-up; a warm-up of 50 would leave"),
        ("patience", "3", "give validate_every a number of steps"),
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
        {"workers": -1},
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
        ([("masking.share", "1")], "no 'share' there; it has target, corrupted, masked, swapped, kept"),
        ([("masking", "none")], "--masking has parts"),
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
    with pytest.raises(ValueError, match=r"--masking.corrupted: a Recipe has no 'corrupted' there"):
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
    with pytest.raises(ValueError, match="a warm-up of 7 would leave the rest to train"):
        Schedule(peak=1.0, total=73, warmup=10_000)
