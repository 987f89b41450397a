"""`vitlab.vtab`: fine-tuning and the light evaluation of tasks on miniature archives."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
import vtab_miniatures
from vitlab.data.splits import nested_subset
from vitlab.data.vtab.listing import jpeg
from vitlab.data.vtab.opening import open_task
from vitlab.metrics.ridge import GRID
from vitlab.models.build import build_from_spec
from vitlab.paper.results import TABLE_9
from vitlab.paper.vtab import TASKS
from vitlab.runs.vtab.finetuning import exceptions
from vitlab.runs.vtab.results import Score, VtabResult
from vtab_miniatures import written

SMALL = {"image": 8, "batch": 8, "schedule": {"total": 3, "warmup": 1}}


@pytest.fixture
def weights(tmp_path, tiny_spec):
    """Random weights of a tiny model in a file."""
    torch.manual_seed(0)
    model = build_from_spec(replace(tiny_spec, image=(8, 8), patch=4, head="linear", classes=5))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    vitlab.save_model(model, tmp_path / "weights", "vitlab")
    return tmp_path / "weights"


class TestLight:
    def test_tasks_on_the_same_images_share_their_features(self, tmp_path, weights):
        tasks = written(tmp_path / "root", "dsprites_location", "dsprites_orientation", "svhn")
        found = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=tasks, light=True, quiet=True)
        assert [score.task.key for score in found.scores] == ["svhn", "dsprites_location", "dsprites_orientation"]
        assert sorted(path.name for path in (tmp_path / "out" / "light").iterdir()) == ["dsprites", "svhn"]
        assert [score.count for score in found.scores] == [task.test.images for task in (tasks[2], *tasks[:2])]

    def test_ridge_is_that_of_the_normal_equations_with_l2_picked_on_val200(self, tmp_path, weights):
        (task,) = written(tmp_path / "root", "svhn")
        found = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=[task], light=True, quiet=True)
        sets = {}
        for split in ("train800", "val200", "train800val200", "test"):
            source = open_task(tmp_path / "root", task, split)
            made = vitlab.features(weights, source, quiet=True).vectors
            sets[split] = made.x.astype(np.float64), made.y

        def accuracy(train, test, l2):
            (x, y), (ex, ey) = sets[train], sets[test]
            mean, deviation = x.mean(0), x.std(0) + 1e-5
            x, ex = (np.hstack([(a - mean) / deviation, np.full((len(a), 1), 100.0)]) for a in (x, ex))
            w = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ (2 * np.eye(10)[y] - 1))
            return float(((ex @ w).argmax(1) == ey).mean())

        picked = max(GRID, key=lambda l2: (accuracy("train800", "val200", l2), l2))
        result = json.loads((tmp_path / "out" / "light" / "svhn" / "light.json").read_text())["svhn"]
        assert result["few-shot ridge"]["l2"] == picked
        assert found.scores[0].mean("few-shot ridge") == pytest.approx(100 * accuracy("train800val200", "test", picked))
        assert sum(result["label counts"]) == task.test.images
        assert found.scores[0].chance == 100 * max(result["label counts"]) / task.test.images

    def test_a_task_that_can_be_learned_is_learned(self, tmp_path, weights):
        """Blank images whose brightness is the class."""
        root = tmp_path / "root"
        (root / "eurosat").mkdir(parents=True)
        task = vtab_miniatures.eurosat(root).task("eurosat", 3)
        files = {}
        for kind, grey in (("AnnualCrop", 20), ("Forest", 120), ("River", 230)):
            for number in range(80 // 3 + 2):
                files[f"2750/{kind}/{kind}_{number}.jpg"] = jpeg(Image.new("RGB", (8, 8), (grey,) * 3), 75)
        kept = dict(list(files.items())[:80])
        vtab_miniatures.write_zip(root / "EuroSAT.zip", kept)
        found = vitlab.vtab(weights, root, tmp_path / "out", tasks=[task], light=True, quiet=True)
        assert min(found.scores[0].mean(method) for method in found.methods) == 100

    def test_called_again_it_repeats_nothing_and_other_settings_are_refused(self, tmp_path, weights):
        (task,) = written(tmp_path / "root", "svhn")
        first = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=[task], light=True, quiet=True)
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "light").rglob("*") if path.is_file()}
        again = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=[task], light=True, quiet=True)
        assert again == first
        assert all(path.stat().st_mtime_ns == written for path, written in files.items())
        with pytest.raises(ValueError, match="holds another measurement: image differ"):
            vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=[task], light=True, image=16, quiet=True)

    def test_some_of_the_test_images_have_their_own_labels(self, tmp_path, weights):
        tasks = written(tmp_path / "root", "dsprites_location", "dsprites_orientation")
        how = {"tasks": tasks, "light": True, "quiet": True}
        found = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", test_images=7, **how)
        results = json.loads((tmp_path / "out" / "light" / "dsprites" / "light.json").read_text())
        for score, task in zip(found.scores, tasks, strict=True):
            whole = open_task(tmp_path / "root", task, "test")
            part = nested_subset(whole, 7)
            labels = [part.label(number)[0] for number in range(7)]
            assert results[task.key]["label counts"] == [labels.count(label) for label in range(task.classes)]
            assert score.count == 7
        assert f"7 of {len(whole):,} test images" in found.table.rows[0][-1]
        with pytest.raises(ValueError, match="holds another measurement: test_images differ"):
            vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", **how)
        with pytest.raises(ValueError, match="test_images 0 must be at least 1"):
            vitlab.vtab(weights, tmp_path / "root", tmp_path / "other", test_images=0, **how)

    def test_settings_without_effect_are_refused(self, tmp_path, weights):
        (task,) = written(tmp_path / "root", "svhn")
        with pytest.raises(ValueError, match=r"schedule\.peak has no effect"):
            vitlab.vtab(weights, tmp_path / "root", tasks=[task], light=True, schedule={"peak": 1.0}, quiet=True)
        with pytest.raises(ValueError, match="test_images is for light=True"):
            vitlab.vtab(weights, tmp_path / "root", tasks=[task], test_images=5, quiet=True)


class TestFinetuning:
    @pytest.mark.slow
    def test_every_task_has_its_recipe_and_the_table_its_means(self, tmp_path, weights):
        tasks = written(tmp_path / "root", "svhn", "eurosat", "dsprites_location", "dsprites_orientation")
        how = {"tasks": tasks, "runs": 2, "quiet": True, **SMALL}
        found = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", **how)
        assert found.problems == {}
        assert all(len(score.runs["fine-tuned"]) == 2 for score in found.scores)
        for task in tasks:
            for seed in (0, 1):
                run = json.loads((tmp_path / "out" / task.key / f"seed-{seed}" / "run.json").read_text())
                augmentation = run["recipe"]["augmentation"]
                assert (augmentation["crop"] == "none") == (task.key == "dsprites_location")
                assert augmentation["flip"] == (task.key in ("svhn", "eurosat"))
                assert (run["seed"], run["held_out"], run["recipe"]["schedule"]["total"]) == (seed, 0.0, 3)
                assert run["recipe"]["schedule"]["decay"] == "cosine"
        table = found.table
        means = {row[0]: row[2] for row in table.rows if row[0].startswith("mean")}
        assert means["mean over 4 of 19 tasks"] == pytest.approx(
            fmean(score.mean("fine-tuned") for score in found.scores)
        )
        assert (tmp_path / "out" / "vtab.csv").exists()
        assert vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", **how) == found

    def test_tasks_without_files_are_reported_and_the_others_run(self, tmp_path, weights):
        tasks = written(tmp_path / "root", "svhn", "eurosat")
        (tmp_path / "root" / "EuroSAT.zip").write_bytes(b"PK")
        found = vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", tasks=tasks, runs=1, quiet=True, **SMALL)
        assert [score.task.key for score in found.scores] == ["svhn"]
        assert "not a complete zip file" in found.problems["eurosat"]
        assert any("not run: EuroSAT.zip" in str(row[-1]) for row in found.table.rows)

    @pytest.mark.parametrize("max_bad", [0.0, 0.05])
    @pytest.mark.parametrize("how", [{"light": True}, {"runs": 1, **SMALL}], ids=["light", "full"])
    def test_an_image_that_cannot_be_read_is_reported_with_its_task_and_the_others_run(
        self, tmp_path, weights, how, max_bad
    ):
        tasks = written(tmp_path / "root", "svhn", "eurosat")
        with zipfile.ZipFile(tmp_path / "root" / "EuroSAT.zip") as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        taken = open_task(tmp_path / "root", tasks[1], "test").id(0)  # train/CLASS_CLASS_NUMBER.jpg
        (name,) = (name for name in files if taken.endswith(f"_{name.rpartition('/')[2]}"))
        vtab_miniatures.write_zip(tmp_path / "root" / "EuroSAT.zip", files | {name: b"no image"})
        found = vitlab.vtab(
            weights, tmp_path / "root", tmp_path / "out", tasks=tasks, quiet=True, max_bad=max_bad, **how
        )
        scored = [score.task.key for score in found.scores]
        said = next(str(row[-1]) for row in found.table.rows if row[0] == "EuroSAT")
        if max_bad == 0:
            assert scored == ["svhn"]
            assert "1 bad image, none is allowed" in said
        else:
            assert scored == ["svhn", "eurosat"]
            assert "1 of 20 test images could not be read" in said

    def test_no_task_at_all_is_an_error_that_says_how_to_find_out(self, tmp_path, weights):
        (tmp_path / "root").mkdir()
        with pytest.raises(ValueError, match="none of the 19 tasks can run; vitlab data check vtab"):
            vitlab.vtab(weights, tmp_path / "root", tmp_path / "out", quiet=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [{"jobs": 2}, {"ray": "local"}], ids=["processes", "ray"])
    def test_parallel_jobs_reach_the_same_numbers(self, tmp_path, weights, workers):
        tasks = written(tmp_path / "root", "svhn", "eurosat")
        how = {"tasks": tasks, "runs": 1, "quiet": True, **SMALL}
        here = vitlab.vtab(weights, tmp_path / "root", tmp_path / "here", **how)
        there = vitlab.vtab(weights, tmp_path / "root", tmp_path / "there", **workers, **how)
        assert here == there

    def test_days_on_a_cpu_must_be_confirmed(self, tmp_path, weights):
        (task,) = written(tmp_path / "root", "svhn")
        with pytest.raises(ValueError, match=r"would take about .* (days|years) on this CPU; confirm with yes=True"):
            vitlab.vtab(
                weights, tmp_path / "root", tmp_path / "out", tasks=[task], quiet=True, image=8,
                schedule={"total": 10**9}, device="cpu",
            )  # fmt: skip


def test_exceptions_are_those_of_the_paper_of_bit():
    changed = {task.key: dict(exceptions(task)) for task in TASKS}
    unflipped = {key for key, changes in changed.items() if "augmentation.flip" in changes}
    uncropped = {key for key, changes in changed.items() if "augmentation.crop" in changes}
    assert unflipped == {"dsprites_orientation", "smallnorb_azimuth", "dsprites_location"}
    assert uncropped == {"clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location"}
    assert all(changes.get("augmentation.flip", False) is False for changes in changed.values())
    assert all(changes.get("augmentation.crop", "none") == "none" for changes in changed.values())


def test_the_recipe_is_row_vtab_of_table_4():
    recipe = vitlab.find_recipe("vtab")
    assert (recipe.schedule.peak, recipe.schedule.total, recipe.batch, recipe.image) == (0.01, 2500, 512, (384, 384))
    assert (recipe.augmentation.crop, round(384 * recipe.augmentation.enlarged)) == ("square-crop", 448)


def test_scores_of_the_paper_give_its_own_means():
    """The table, filled with table 9, has the paper's means of groups and of all tasks (figure 2)."""
    model = TABLE_9.rows[0][0]
    scores = tuple(Score(task, {"fine-tuned": (TABLE_9[model, task.name],)}, 1, 0.0) for task in TASKS)
    rows = {row[1]: row for row in VtabResult(scores, {}).table.rows if row[0] == "mean"}
    found = {group: round(row[2], 2) for group, row in rows.items()}
    assert found == {"natural": 86.69, "specialized": 87.0, "structured": 65.03, "all": 77.63}
    assert all(row[2] == row[5] for row in rows.values())


PROGRAM = """
import sys
from pathlib import Path
import vtab_miniatures, vitlab
from vitlab.runs.vtab import light
light.SHARD = 4
weights, root, out, kind = sys.argv[1:]
scratch = Path(root) / "scratch"
scratch.mkdir(exist_ok=True)
tasks = []
for key in ("svhn", "eurosat"):
    write, forms, classes, _ = vtab_miniatures.SETS[key]
    tasks.append(write(scratch, forms[0]).task(key, classes))
small = {"image": 8, "batch": 8, "schedule": {"total": 40, "warmup": 1}, "runs": 1, "save_every": 2}
vitlab.vtab(weights, root, out, tasks=tasks, quiet=True, **({"light": True} if kind == "light" else small))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["light", "full"])
def test_killed_anywhere_it_continues_and_ends_with_the_same_numbers(tmp_path, weights, kind):
    written(tmp_path / "root", "svhn", "eurosat")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(vtab_miniatures.__file__).parent)])}

    def command(out):
        return [sys.executable, str(script), str(weights), str(tmp_path / "root"), str(tmp_path / out), kind]

    subprocess.run(command("whole"), env=environment, check=True)
    mark = "shard-*.npz" if kind == "light" else "checkpoints/*"
    for _ in range(3):
        before = len(list((tmp_path / "out").rglob(mark)))
        process = subprocess.Popen(command("out"), env=environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline:
            if len(list((tmp_path / "out").rglob(mark))) > before:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command("out"), env=environment, check=True)
    assert (tmp_path / "out" / "vtab.json").read_text() == (tmp_path / "whole" / "vtab.json").read_text()
