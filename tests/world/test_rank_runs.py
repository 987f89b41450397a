"""Whole runs on several ranks: one folder, one log, one account; what some ranks saved others continue."""

import json
import os
import re
import shutil
import signal
import socket
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file

import crashes
import ranks
from agreement import randomised
from families import FAMILIES
from pictures import photo
from vitlab.cli import main
from vitlab.engines import making
from vitlab.errors import LostRank
from vitlab.files.store import locked
from vitlab.models.build import build_from_spec
from vitlab.run_dir import CHECKPOINTS, RunDir
from vitlab.runs.measure.inputs import settled
from vitlab.spec.recipe import Execution, Masking
from vitlab.weights.load import weights_sha256
from vitlab.weights.save import save_model
from vitlab.world.group import join

STEPS = 10


def small(kind="ddp", **options):
    execution = Execution(save_every=4, micro_batch=3, parallel=kind, **options)
    return crashes.small_run(steps=STEPS, execution=execution, shards=4 if execution.exact_elastic else 1)


def write_pictures(folder, bad):
    """Two classes of twelve pictures; those of `bad` numbers are none."""
    for number in range(24):
        file = folder / f"class-{number // 12}" / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(10 + number, 10).save(file)
        if number in bad:
            file.write_bytes(b"not a picture")


def on_pictures(folder, batch, execution):
    spec = crashes.small_run(steps=8, batch=batch, execution=execution, validate_every=0, patience=0)
    return replace(spec, data=f"folder:{folder}", model=replace(spec.model, classes=2), held_out=0.0)


def stop_at(path, number, step):
    """Carry a run on by this many ranks until the last one is told to stop at a step."""
    how = (ranks.on_rank_and_step, number - 1, step, ranks.signal_self, signal.SIGTERM)
    return ranks.run_ranks(number, ranks.carry_on_together, path, ranks.TIMEOUT, *how)


def parts_put_together(folder):
    """The tensors of a checkpoint from the files of its ranks, by hand: rows follow rows."""
    found = {}
    for file in sorted(folder.glob("*.rank-*.safetensors")):
        for name, tensor in load_file(file).items():
            found.setdefault(f"{file.name.partition('.')[0]}/{name}", []).append(tensor)
    return {name: parts[0] if parts[0].dim() == 0 else torch.cat(parts) for name, parts in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_two_ranks_saved_one_and_three_continue(in_memory, kind):
    path = in_memory / "run"
    crashes.new_run(path, small(kind))
    assert stop_at(path, 2, 5) == [143, 143]
    (saved,) = (path / CHECKPOINTS).glob("step-*5")
    whole = {f"{f.stem}/{n}": t for f in saved.glob("*.safetensors") for n, t in load_file(f).items()}
    expected = parts_put_together(saved) if kind == "fsdp" else whole
    assert len(list(saved.glob("model*"))) == (2 if kind == "fsdp" else 1)
    for number in (1, 3):
        out = in_memory / f"{number}.safetensors"
        assert ranks.run_ranks(number, ranks.read_state, path, out) == [0] * number
        found = load_file(out)
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        with safe_open(out, "pt") as file:
            assert file.metadata() == {"step": "5"}
    for number, other in ((1, "auto"), (3, kind)):
        copy = in_memory / f"on-{number}"
        shutil.copytree(path, copy)
        assert ranks.run_ranks(number, ranks.resume_command, copy, "--parallel", other) == [0] * number
        run = RunDir(copy)
        (resumed,) = run.events("resumed")
        assert resumed["step"] == 5
        assert any("ranks was 2" in change for change in resumed["changed"])
        assert [event["step"] for event in run.events("step")] == list(range(1, STEPS + 1))
        books = json.loads((max((copy / CHECKPOINTS).glob("step-*")) / "state.json").read_text())["progress"]["books"]
        assert sum(books["used"].values()) == STEPS * 12
        assert (copy / "model" / "weights.safetensors").exists()


@pytest.mark.slow
def test_a_whole_checkpoint_is_continued_by_ranks_with_parts_and_back(in_memory):
    path = in_memory / "run"
    crashes.new_run(path, small("ddp"))
    assert stop_at(path, 2, 3) == [143, 143]
    before = {f.stem: load_file(f) for f in (path / CHECKPOINTS / "step-00000003").glob("*.safetensors")}
    how = (ranks.on_rank_and_step, 0, 6, ranks.signal_self, signal.SIGTERM)
    spec = json.loads((path / "run.json").read_text())
    spec["execution"]["parallel"] = "fsdp"
    (path / "run.json").write_text(json.dumps(spec))
    out = in_memory / "read.safetensors"
    assert ranks.run_ranks(3, ranks.read_state, path, out) == [0] * 3
    found = load_file(out)
    assert all(torch.equal(found[f"{g}/{n}"], t) for g, tensors in before.items() for n, t in tensors.items())
    assert ranks.run_ranks(3, ranks.carry_on_together, path, ranks.TIMEOUT, *how) == [143] * 3
    assert len(list((path / CHECKPOINTS / "step-00000006").glob("model.rank-*-of-00003.safetensors"))) == 3
    crashes.finish(path)  # one rank alone


@pytest.mark.slow
def test_an_exact_run_may_change_its_ranks_and_ends_bit_identical(in_memory):
    unbroken, path = in_memory / "unbroken", in_memory / "run"
    for folder in (unbroken, path):
        crashes.new_run(folder, small("auto", exact_elastic=True))
    assert ranks.run_ranks(1, ranks.carry_on_together, unbroken) == [0]
    assert stop_at(path, 2, 3) == [143] * 2
    assert stop_at(path, 3, 6) == [143] * 3
    assert stop_at(path, 4, 8) == [143] * 4
    crashes.finish(path)
    crashes.assert_same(path, unbroken)
    assert not any(event["changed"] for event in RunDir(path).events("resumed"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_image_is_booked_once_and_bad_ones_are_nobodys_alone(in_memory, kind):
    """Batches of 6 on 4 ranks, some of whose shares are bad as a whole; the books are those of one rank."""
    folder = in_memory / "pictures"
    write_pictures(folder, range(3, 8))
    books = {}
    for number in (1, 4):
        path = in_memory / f"on-{number}"
        crashes.new_run(path, on_pictures(folder, 6, Execution(parallel=kind, max_bad=0.5, save_every=3)))
        heard = in_memory / f"heard-{number}"
        assert ranks.run_ranks(number, ranks.heard_command, path, heard) == [0] * number
        assert heard.read_text().count("5 of 24 images could not be read in training") == 1
        told = re.findall(r"(\d+) (?:more )?of 24 images could not be read:", heard.read_text())
        assert sum(map(int, told)) == 5
        last = max((path / CHECKPOINTS).glob("step-*"))
        books[number] = json.loads((last / "state.json").read_text())["progress"]["books"]
        assert json.loads((path / "quarantine.json").read_text()) == books[number]
    assert books[1] == books[4]
    assert len(books[4]["quarantined"]) > 0
    assert sum(books[4]["used"].values()) + sum(books[4]["bad"].values()) == 8 * 6


@pytest.mark.slow
def test_too_many_bad_images_of_one_rank_stop_all_with_one_message(in_memory):
    folder, path, said = in_memory / "pictures", in_memory / "run", in_memory / "said"
    write_pictures(folder, range(12))
    crashes.new_run(path, on_pictures(folder, 6, Execution(parallel="ddp", max_bad=0.05)))
    codes = ranks.run_ranks(3, ranks.resume_command, path, said=said)
    assert sorted(codes) == [1, 1, 2]
    (named,) = re.findall(r"(\d+) bad images, at most 10 of 24 are allowed", said.read_text())
    assert len(json.loads((path / "quarantine.json").read_text())["quarantined"]) == int(named) > 10


@pytest.mark.slow
def test_an_error_of_the_first_rank_ends_all_with_one_message(in_memory):
    path, said = in_memory / "run", in_memory / "said"
    crashes.new_run(path, small())
    with locked(path):
        assert ranks.run_ranks(3, ranks.resume_command, path, said=said) == [2, 1, 1]
    assert said.read_text().count("is in use") == 1
    assert said.read_text().count("vitlab: ") == 1  # torch may complain of a store that is gone


@pytest.mark.slow
def test_an_error_that_all_ranks_meet_is_told_once(in_memory):
    said = in_memory / "said"
    assert ranks.run_ranks(3, ranks.resume_command, in_memory / "nothing", said=said) == [2, 2, 2]
    assert said.read_text().count("does not exist") == 1
    assert said.read_text().count("vitlab: ") == 1


@pytest.mark.slow
def test_what_all_ranks_meet_before_they_meet_each_other_is_told_once(in_memory):
    path, said = in_memory / "run", in_memory / "said"
    crashes.new_run(path, small())
    for flags, message in (
        (("--parallel", "fsdp", "--compile", "true"), "compile"),
        (("--exact-elastic", "true"), "began without --exact-elastic"),
    ):
        said.unlink(missing_ok=True)
        assert set(ranks.run_ranks(2, ranks.resume_command, path, *flags, said=said)) <= {1, 2}
        assert said.read_text().count(message) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_disk_that_is_full_on_one_rank_stops_all(in_memory, kind):
    path, said = in_memory / "run", in_memory / "said"
    crashes.new_run(path, small(kind))
    rank = 1 if kind == "fsdp" else 0
    how = (ranks.on_rank_and_step, rank, 2, crashes.limit_files, 3000)
    codes = ranks.run_ranks(2, ranks.disturbed_command, path, ranks.TIMEOUT, *how, said=said)
    assert sorted(codes) == [1, 2]
    assert said.read_text().count("could not be written") == 1
    assert not list((path / CHECKPOINTS).glob(".*"))
    assert crashes.whole_checkpoints(path) == [0]
    assert ranks.run_ranks(2, ranks.resume_command, path) == [0, 0]


@pytest.mark.slow
def test_a_signal_to_save_reaches_all_ranks(in_memory):
    path = in_memory / "run"
    crashes.new_run(path, small("fsdp", keep=9))
    how = (ranks.on_rank_and_step, 1, 3, ranks.signal_self, signal.SIGUSR1)
    assert ranks.run_ranks(2, ranks.carry_on_together, path, ranks.TIMEOUT, *how) == [0, 0]
    assert 3 in crashes.whole_checkpoints(path)


@pytest.mark.slow
def test_masked_patches_are_learnt_on_ranks_too(in_memory):
    """The first loss and the last validation of whole and of cut models agree with one rank's."""
    found = {}
    for number, kind in ((1, "auto"), (3, "ddp"), (3, "fsdp")):
        path = in_memory / kind
        spec = crashes.small_run(
            steps=4, masking=Masking("mean-colour", 0.5, 0.8, 0.1, 0.1), loss="softmax", dropout=0.0, validate_every=2
        )
        model = replace(spec.model, dropout=0.0, classes=0)
        crashes.new_run(path, replace(spec, model=model, execution=Execution(parallel=kind, micro_batch=3)))
        said = in_memory / "said"
        assert ranks.run_ranks(number, ranks.resume_command, path, said=said) == [0] * number
        assert "Warning" not in said.read_text()
        run = RunDir(path)
        validated = list(run.events("validation"))
        assert {event["count"] for event in validated} == {35}
        found[kind] = [*run.history("step", "loss").values(), validated[-1]["loss"]]
        assert "mask_token" not in load_file(path / "model" / "weights.safetensors")
        assert (path / "masked-patches.png").exists()
    assert found["ddp"] == pytest.approx(found["auto"], rel=1e-4)
    assert found["fsdp"] == pytest.approx(found["ddp"], rel=1e-5)


@pytest.mark.slow
def test_pictures_have_the_same_partners_on_any_number_of_ranks(in_memory):
    losses = {}
    for number in (1, 3):
        path = in_memory / f"on-{number}"
        spec = crashes.small_run(steps=4, mixup=0.8, cutmix=1.0, shards=4, dropout=0.0)
        crashes.new_run(path, replace(spec, model=replace(spec.model, dropout=0.0), execution=Execution()))
        assert ranks.run_ranks(number, ranks.resume_command, path) == [0] * number
        losses[number] = list(RunDir(path).history("step", "loss").values())
    assert losses[3] == pytest.approx(losses[1], rel=1e-4)
    path, said = in_memory / "whole", in_memory / "said"
    crashes.new_run(path, crashes.small_run(steps=4, mixup=0.8))
    assert sorted(ranks.run_ranks(2, ranks.resume_command, path, said=said)) == [1, 2]
    assert said.read_text().count("2 ranks cannot share the 1 part(s) in which images are mixed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_student_with_two_heads_learns_on_ranks_as_alone(in_memory, kind):
    teacher = in_memory / "teacher"
    spec = crashes.small_run(steps=3, dropout=0.0)
    model = replace(spec.model, dropout=0.0)
    save_model(randomised(build_from_spec(model)), teacher)
    found = {}
    for number in (1, 2):
        path = in_memory / f"on-{number}"
        student = replace(
            spec,
            model=replace(model, distilled=True),
            execution=Execution(parallel=kind, micro_batch=3),
            teacher=str(teacher),
            teacher_sha256=weights_sha256(teacher),
        )
        crashes.new_run(path, student)
        assert ranks.run_ranks(number, ranks.resume_command, path) == [0] * number
        found[number] = list(RunDir(path).history("step", "loss").values())
    assert len(found[2]) == 3
    assert found[2] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("is_taken", [False, True])
def test_ranks_that_do_not_meet_say_where(monkeypatch, is_taken):
    """Nobody is there, or a program that takes the connection and says nothing."""
    with socket.socket() as other:
        port = ranks.free_port()
        other.bind(("127.0.0.1", port))
        if is_taken:
            other.listen()
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        said = (
            f"the ranks did not connect at 127.0.0.1:{port} within 1 seconds: {'another program' if is_taken else ''}"
        )
        with pytest.raises(LostRank, match=said), join("cpu", 1.0):
            pass


@pytest.mark.slow
def test_measuring_on_ranks_gives_what_one_process_gives(in_memory, tiny):
    """evaluate, features and fewshot as commands: every image once, the same files."""
    model, said = in_memory / "model", in_memory / "said"
    tiny.reset_head(10)
    randomised(tiny).class_names = tuple("0123456789")
    save_model(tiny, model)
    digits, photos = "digits?split=test", f"folder:{in_memory / 'photos'}"
    write_pictures(in_memory / "photos", (0, 2, 13))
    commands = {
        "evaluate": ["evaluate", str(model), "--data", digits, "--batch", "7"],
        "features": ["features", str(model), "--data", digits, "--shard", "50"],
        "fewshot": [
            "fewshot",
            "--model",
            str(model),
            "--train",
            "digits?split=train",
            "--test",
            digits,
            "--shots",
            "2",
        ],
        "bad shots": ["fewshot", "--model", str(model), "--train", photos, "--test", photos, "--shots", "2"],
    }
    commands["bad shots"] += ["--max-bad", "0.2"]
    for name, command in commands.items():
        for number in (1, 3):
            out = in_memory / f"{name}-{number}"
            codes = ranks.run_ranks(number, main, [*command, "--workers", "0", "--out", str(out)], said=said)
            assert codes == [0] * number, said.read_text()
        one, three = (in_memory / f"{name}-{number}" for number in (1, 3))
        kinds = (".csv", ".md", ".npz") if name != "evaluate" else (".csv", ".md", ".json")
        files = sorted(f.relative_to(one) for f in one.rglob("*") if f.suffix in kinds and "progress" not in f.parts)
        assert files
        for file in files:
            assert (three / file).read_bytes() == (one / file).read_bytes(), file


def choose_engine(folder):
    """What each rank does: an automatic choice, with a cache of its own as on another machine."""
    rank = os.environ["RANK"]
    os.environ["VITLAB_ENGINE_CACHE"] = str(folder / f"cache-{rank}")
    model = randomised(build_from_spec(FAMILIES["ViT"]))
    with join("cpu", ranks.TIMEOUT) as world:
        chosen = settled(model, "auto", 4, world, Console(file=sys.stderr, quiet=not world.leads))
    (folder / f"chosen-{rank}").write_text(f"{chosen} {[*making._made[model]]}")


@pytest.mark.slow
@pytest.mark.skipif(bool(making.missing_packages("onnxruntime")), reason="onnxruntime is not installed")
def test_rank_0_chooses_the_engine_that_all_open(in_memory):
    said = in_memory / "said"
    assert ranks.run_ranks(2, choose_engine, in_memory, said=said) == [0, 0], said.read_text()
    first, other = ((in_memory / f"chosen-{rank}").read_text().split(maxsplit=1) for rank in range(2))
    assert first[0] == other[0]
    assert other[1] == f"['{first[0]}']"  # it has tried no other
    assert len(list((in_memory / "cache-0").glob("*.json"))) == 1
    assert not list((in_memory / "cache-1").glob("*.json"))
    assert said.read_text().count("auto: images/s in batches of 4: torch ") == 1


@pytest.mark.slow
def test_a_command_for_one_process_refuses_ranks(in_memory):
    said = in_memory / "said"
    assert ranks.run_ranks(2, main, ["demo"], said=said) == [2, 2]
    assert said.read_text().count("demo runs in one process, not on 2 ranks") == 1
