"""The grids of the studies: at the paper's scale they are the paper's tables, at smaller ones they keep its shape."""

from dataclasses import replace

import pytest

from vitlab.counting import count_spec
from vitlab.paper import results
from vitlab.paper.finetuning import TABLE_4
from vitlab.paper.models import model_spec
from vitlab.paper.pretraining import DATA, FIGURE_4_SUBSETS, TABLE_3, UNPRINTED_ROWS
from vitlab.paper.recipes.pretraining import pretraining_recipe
from vitlab.paper.vtab import TASKS
from vitlab.spec import ResNetSpec, ViTSpec
from vitlab.spec.recipe import SGD, AdamW
from vitlab.studies.architecture import FIGURE_12_SIZES
from vitlab.studies.catalogue import NAMES, STUDIES, find_study
from vitlab.studies.pretraining import FIGURE_4
from vitlab.studies.scale import FROM
from vitlab.studies.scales import PAPER, SCALES, SMALL, TINY, find_scale
from vitlab.studies.study import Accuracy, Cell, FewShot, Inside, Real, Speed, cell_name, check_grid

VTAB = [f"VTAB, {task.name}" for task in TASKS]


def cells(name, scale=PAPER):
    return check_grid(name, find_study(name).cells(scale))


def levels(name, *factors):
    """The combinations of some factors, in order and once."""
    return list(dict.fromkeys(tuple(cell.levels[factor] for factor in factors) for cell in cells(name)))


def printed(name, *factors):
    """What the paper prints, by the levels of some factors."""
    return {tuple(cell.levels[factor] for factor in factors): cell.published for cell in cells(name)}


def rows_of(training):
    """The model, data and epochs behind a pre-training, from its recipe's name."""
    model, _, rest = training.chain[0].recipe.name.partition("@")
    return model, rest


# -- The tables ------------------------------------------------------------------------------------


def test_table_2_has_every_model_and_task_with_the_printed_means():
    table, found = results.TABLE_2, printed("table2", "model", "data", "task")
    models = [column for column in table.columns if column != results.NOISY_STUDENT]
    tasks = [row for row, _ in table.rows if row != "VTAB"]
    assert levels("table2", "model", "data") == models
    for model, data in models:
        for task in tasks:
            assert found[model, data, task] == table[task, (model, data)].mean
    rows = dict(results.TABLE_9.rows)
    for model, data in models:
        for task in TASKS:
            value = results.TABLE_9[(model, data), task.name] if (model, data) in rows else None
            assert found[model, data, f"VTAB, {task.name}"] == value
        if (model, data) in rows:  # the row VTAB of table 2 is the mean of its tasks
            own = [found[model, data, name] for name in VTAB]
            assert sum(own) / len(own) == pytest.approx(table["VTAB", (model, data)].mean, abs=0.0101)
    assert len(found) == len(models) * (len(tasks) + len(TASKS))


def test_table_2_fine_tunes_at_the_resolutions_of_the_text():
    sides = {(c.levels["model"], c.levels["task"]): c.training.model.image[0] for c in cells("table2")}
    assert sides["ViT-H/14", "ImageNet"] == 518
    assert sides["ViT-L/16", "ImageNet"] == 512
    assert sides["ViT-L/16", "CIFAR-10"] == 384
    assert sides["ViT-H/14", "CIFAR-10"] == 378
    averages = {c.training.recipe.average for c in cells("table2") if c.levels["task"] == "ImageNet"
                and c.levels["model"].startswith("ViT")}  # fmt: skip
    assert averages == {0.9999}


def test_figure_2_has_the_nineteen_tasks_of_every_model_by_group():
    groups = {(task, group) for _, _, group, task in levels("figure2", "model", "data", "group", "task")}
    assert groups == {(f"VTAB, {task.name}", task.group) for task in TASKS}
    assert len(cells("figure2")) == 4 * 19


def test_table_5_has_every_cell_that_is_printed_and_no_other():
    table = results.TABLE_5
    wanted = {
        (data, model, task): table[(data, task), model]
        for (data, task), _ in table.rows
        for model in table.columns
        if table[(data, task), model] is not None
    }
    assert printed("table5", "data", "model", "task") == wanted
    assert find_study("figure3") is find_study("table5")


def test_figure_4_has_its_models_on_nested_subsets_with_the_same_steps_and_early_stopping():
    sizes = [str(size) for size in (*FIGURE_4_SUBSETS, DATA["JFT-300M"].images)]
    assert levels("figure4", "model", "images") == [(model, size) for model in FIGURE_4 for size in sizes]
    found = cells("figure4")
    specs = {cell.levels["images"]: cell.training.data for cell in found}
    assert specs == {size: f"{{jft300m}}?subset={size}" for size in sizes[:-1]} | {sizes[-1]: "{jft300m}"}
    for model in FIGURE_4:
        own = [cell.training for cell in found if cell.levels["model"] == model]
        assert len({one.recipe for one in own}) == 1
        assert own[0].recipe.patience
        assert own[0].held_out
    assert {cell.measurement.shots for cell in found} == {5}


def test_table_6_has_every_model_length_and_task_and_its_exaflops():
    table = results.TABLE_6
    tasks = [column for column in table.columns if column != "exaFLOPs"]
    wanted = {(m, str(e), t): table[(m, e), t] for (m, e), _ in table.rows for t in tasks}
    assert printed("table6", "model", "epochs", "task") == wanted
    for cell in cells("table6"):
        key = cell.levels["model"], int(cell.levels["epochs"])
        tolerance = 0.04 if key in (("R50+ViT-L/16", 7), ("ViT-B/32", 7)) else 0.015  # misprints, see paper/results.py
        assert cell.training.chain[0].exaflops == pytest.approx(table[key, "exaFLOPs"], rel=tolerance)
    assert find_study("figure5") is find_study("table6")


def test_table_7_has_both_optimizers_of_both_resnets():
    table = results.TABLE_7
    wanted = {(m, o, t): table[t, (m, o)] for m, o in table.columns for t, _ in table.rows if t != "Average"}
    assert printed("table7", "model", "optimizer", "task") == wanted
    kinds = {cell.levels["optimizer"]: type(cell.training.chain[0].recipe.optimizer) for cell in cells("table7")}
    assert kinds == {"Adam": AdamW, "SGD": SGD}


def test_table_8_has_every_printed_cell_as_a_percentage():
    table = results.TABLE_8
    wanted = {
        (row, at): pytest.approx(100 * table[row, at])
        for row, _ in table.rows
        for at in table.columns
        if table[row, at] is not None
    }
    assert printed("table8", "positions", "at") == wanted
    for cell in cells("table8"):
        model = cell.training.model
        assert (model.positions, model.positions_at) == (cell.levels["positions"], cell.levels["at"])
        assert replace(model, positions="1d", positions_at="stem") == model_spec("ViT-B/16", classes=18_291)
        assert isinstance(cell.measurement, FewShot)


def test_figure_4_has_the_models_and_subsets_of_its_legend():
    models = ["ViT-L/16", "ViT-L/32", "ViT-B/32", "ViT-b/32", "R50x1", "R152x2"]
    assert levels("figure4", "model") == [(model,) for model in models]
    assert [int(size) for (size,) in levels("figure4", "images")] == [9_000_000, 30_000_000, 90_000_000, 303_000_000]


def test_figure_7_looks_into_the_two_models_of_its_caption():
    found = {cell.levels["model"]: cell for cell in cells("figure7")}
    assert list(found) == ["ViT-L/32", "ViT-L/16"]  # positions are those of L/32, attention distances those of L/16
    for model, cell in found.items():
        assert rows_of(cell.training)[0] == model
        assert rows_of(cell.training)[1].startswith("jft300m")
        assert isinstance(cell.measurement, Inside)


def test_resolution_fine_tunes_the_same_weights_at_224_and_at_384():
    found = cells("resolution")
    assert {(c.levels["resolution"], c.levels["pixels"]) for c in found} == {("same", "224"), ("higher", "384")}
    assert {c.levels["task"] for c in found} == set(PAPER.transfer)
    assert len({c.training.chain[0] for c in found}) == 1
    for cell in found:
        assert cell.training.model.image == (int(cell.levels["pixels"]),) * 2
        is_printed = cell.levels["resolution"] == "higher"
        value = results.TABLE_5[("ImageNet-21k", cell.levels["task"]), "ViT-B/16"]
        assert cell.published == (value if is_printed else None)


def test_figures_9_and_10_have_the_settings_of_their_legends():
    found = [(c.training.model.pool, c.training.recipe.schedule.peak) for c in cells("figure9")]
    assert found == [("class", 8e-4), ("mean", 8e-4), ("mean", 3e-4)]
    how = [c.training.recipe for c in cells("figure10")]
    shown = [(round(r.schedule.total * 4096 / 303e6), r.schedule.peak, r.optimizer.weight_decay) for r in how]
    assert shown == [(7, 2e-4, 0.01), (7, 4e-4, 0.1), (14, 4e-4, 0.1)]
    assert all(rows_of(c.training)[0] == "ViT-L/16" for c in cells("figure10"))


def test_figure_8_scales_the_base_of_the_paper_in_one_dimension_at_a_time():
    found = {cell.levels["to"]: cell.training.model for cell in cells("figure8")}
    base = found["base"]
    assert (base.layers, base.width, base.mlp, base.patch) == (8, 1024, 2048, 32)
    assert {one.layers for one in found.values()} >= {8, 16, 32, 64}
    assert {level for (level,) in levels("figure8", "scaled")} == {
        "none", "depth", "width", "MLP width", "patch size", "all",
    }  # fmt: skip
    for cell in cells("figure8"):
        model, scaled = cell.training.model, cell.levels["scaled"]
        names = ("layers", "width", "mlp", "patch")
        changed = [name for name in names if getattr(model, name) != getattr(base, name)]
        one = {"none": [], "depth": ["layers"], "width": ["width"], "MLP width": ["mlp"], "patch size": ["patch"]}
        assert changed == one.get(scaled, ["layers", "width", "mlp"])


def test_figure_12_has_eight_models_at_five_sizes():
    found = cells("figure12")
    assert len(found) == 8 * len(FIGURE_12_SIZES)
    assert {cell.levels["pixels"] for cell in found if cell.levels["model"] == "R50x1"} == {
        "64",
        "128",
        "224",
        "384",
        "512",
    }
    assert all(isinstance(cell.measurement, Speed) for cell in found)


def test_figure_13_has_axial_models_and_other_patterns_beside_them():
    models = [model for (model,) in levels("figure13", "model")]
    assert models == ["R50x1", "AxialResNet-50", "ViT-B/32", "Axial-ViT-B/32", "ViT-B/16", "Axial-ViT-B/16"]
    patterns = {cell.training.model.attention for cell in cells("figure13") if isinstance(cell.training.model, ViTSpec)}
    assert {"full", "axial", "window:7", "strided:4", "fixed:14"} <= patterns


def test_self_supervision_has_three_targets_two_corruptions_and_its_rivals():
    table, found = results.SELF_SUPERVISION, printed("selfsup", "learned", "what")
    assert {value for value in found.values() if value} == {table[row, "ImageNet"] for row, _ in table.rows}
    masked = [c.training.chain[0].recipe.masking for c in cells("selfsup") if c.levels["learned"] == "masked patches"]
    assert [one.target for one in masked] == ["mean-colour", "colours-4x4", "pixels", "mean-colour"]
    assert [one.corrupted for one in masked] == [0.5, 0.5, 0.5, 0.15]


# -- Recipes and tasks -------------------------------------------------------------------------------


def test_every_pre_training_of_the_paper_has_a_row_of_its_tables():
    known = {name for row in (*TABLE_3, *UNPRINTED_ROWS) for name in row.models}
    for name in STUDIES:
        for cell in cells(name):
            if cell.training is not None:
                model, _ = rows_of(cell.training)
                assert model in known
                assert FROM.get(model, model) == model


def test_fine_tuning_at_the_papers_scale_tries_the_rates_of_table_4():
    rows = {row.data: row for row in TABLE_4}
    for cell in cells("table6"):
        training, task = cell.training, cell.levels["task"].removesuffix(" ReaL")
        tried = (training.recipe, *training.rivals)
        own = [one for one in tried if one.schedule.decay == "cosine"]
        assert tuple(one.schedule.peak for one in own) == rows[task].learning_rates
        assert {one.schedule.total for one in own} == {rows[task].steps}
        assert training.development == rows[task].dev_fraction
        is_resnet = isinstance(training.model, ResNetSpec)
        assert len(tried) - len(own) == is_resnet, "ResNets also try BiT-HyperRule"


def test_real_labels_are_measured_on_the_model_that_was_fine_tuned_on_imagenet():
    for name in ("table2", "table5", "table6"):
        by_task = {(tuple(c.levels.items())[:-1], c.levels["task"]): c for c in cells(name)}
        real = {key for key, cell in by_task.items() if isinstance(cell.measurement, Real)}
        assert real == {(rest, task) for rest, task in by_task if task == "ImageNet ReaL"}
        assert real
        for rest, task in real:
            assert by_task[rest, task].training == by_task[rest, "ImageNet"].training


# -- Smaller scales ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_grid_at_every_scale(name, scale):
    found = cells(name, find_scale(scale))
    lab = find_scale(scale)
    for cell in found:
        assert cell.places <= lab.places.keys() | lab.drawn.keys()
        assert isinstance(cell.measurement, Accuracy | Real | FewShot | Inside | Speed)


def test_the_tiny_family_keeps_the_papers_proportions_of_compute():
    """Within a factor of 1.5 of the paper's, relative to ViT-B/16."""
    ours, theirs = (count_spec(one).macs for one in (TINY.models["ViT-B/16"], model_spec("ViT-B/16")))
    for name, spec in TINY.models.items():
        if "Axial" not in name:
            ratio = (count_spec(spec).macs / ours) / (count_spec(model_spec(name)).macs / theirs)
            assert 1 / 1.5 < ratio < 1.5, name
    usual = TINY.models["ViT-B/16"]
    assert (usual.tokens, usual.width, usual.layers) == (17, 64, 4)


@pytest.mark.parametrize("scale", [TINY, SMALL])
def test_runs_of_small_scales_see_the_papers_images_times_one_constant(scale):
    small, batches = scale.shrinking, {}
    for name in STUDIES:
        for cell in cells(name, scale):
            if cell.training is None:
                continue
            first = cell.training.chain[0]
            side = scale.tuned_image if first.test else scale.image
            assert first.model.image == (side, side)
            if first.test:  # on the images of a task alone
                assert first.images == small.steps * small.tuning_batch
                continue
            paper = pretraining_recipe(first.recipe.name)
            usual = paper.batch * paper.schedule.total / (7 * DATA["JFT-300M"].images)  # of the paper's 7 epochs
            times = 2 if (name, cell.levels.get("epochs")) == ("figure10", "14") else 1
            assert first.images == pytest.approx(times * usual * small.seen, abs=times * small.batch / 2 + 1)
            batches[first.recipe.name] = first.images // small.batch
    assert len(set(batches.values())) >= 4, "of 7 epochs, of ImageNet-21k, of ImageNet and of masked patches"


def test_studies_share_equal_trainings():
    used = [
        cell.training.chain[0] for name in ("table6", "table8", "figure9", "figure13") for cell in cells(name, TINY)
    ]
    assert used.count(TINY.pretrained("ViT-B/16", "JFT-300M", 7)) >= 4


# -- Names and mistakes --------------------------------------------------------------------------------


def test_names_of_studies_are_found_and_mistakes_get_a_proposal():
    assert find_study("Table 8").name == "table8"
    assert {"table2", "table5", "figure3", "figure4", "table6", "figure5", "table7", "figure8", "figure9", "table8"} | {
        "selfsup", "figure10", "figure12", "figure13", "figure2",
    } <= set(NAMES)  # fmt: skip
    with pytest.raises(ValueError, match=r"did you mean .*table8"):
        find_study("tabel8")
    with pytest.raises(ValueError, match="known are paper, small, tiny"):
        find_scale("huge")


def test_a_grid_with_repeated_or_unlike_cells_is_refused():
    training = TINY.pretrained("ViT-B/16")
    one = Cell({"a": "1"}, TINY.few_shot(), training)
    with pytest.raises(ValueError, match="two cells a=1; give every combination"):
        check_grid("own", [one, one])
    with pytest.raises(ValueError, match=r"two cells a=x-z; \{'a': 'x/z'\} and \{'a': 'x:z'\}: rename a level"):
        check_grid("own", [replace(one, levels={"a": level}) for level in ("x/z", "x:z")])
    with pytest.raises(ValueError, match="same factors"):
        check_grid("own", [one, Cell({"b": "1"}, TINY.few_shot(), training)])
    with pytest.raises(ValueError, match="no cells"):
        check_grid("own", [])
    with pytest.raises(ValueError, match="needs a training"):
        Cell({"a": "1"}, TINY.few_shot())


@pytest.mark.parametrize("lab", [PAPER, SMALL, TINY])
def test_a_length_or_model_without_a_recipe_is_refused_with_those_that_exist(lab):
    with pytest.raises(ValueError, match=r"ViT-B/16 on JFT-300M for 7 epochs, not for 300; .* recipe=\{\"times\": 2\}"):
        lab.pretrained("ViT-B/16", epochs=300)
    with pytest.raises(ValueError, match="ViT-L/16 on ImageNet-21k for 30 or 90 epochs, not for 7"):
        lab.pretrained("ViT-L/16", "ImageNet-21k", 7)
    with pytest.raises(ValueError, match=r"no recipe for ViT-X/16 on ImageNet; it has some for .*, ViT-B/16, "):
        lab.pretrained("ViT-X/16", "ImageNet")
    with pytest.raises(ValueError, match="cannot change lr of a recipe; it can change peak, weight_decay and times"):
        lab.pretrained("ViT-B/16", recipe={"lr": 1.0})


def test_small_scales_have_the_usual_length_in_place_of_its_double():
    for model, recipe in (("ViT-L/16", "ViT-L/16@jft300m-7ep"), ("ViT-H/14", "ViT-H/14@jft300m")):
        assert TINY.pretrained(model, "JFT-300M", 14).recipe.name == recipe
    assert PAPER.pretrained("ViT-L/16", "JFT-300M", 14).recipe.name == "ViT-L/16@jft300m-14ep"
    assert PAPER.pretrained("ViT-L/16").recipe.name == "ViT-L/16@jft300m-7ep"


def test_names_of_cells_are_safe_where_case_is_not_kept():
    assert cell_name({"model": "ViT-b/32"}).lower() != cell_name({"model": "ViT-B/32"}).lower()
    assert cell_name({"x": "../../etc"}) == "x=..-..-etc"
