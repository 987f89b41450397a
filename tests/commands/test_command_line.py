"""Messages name flags on the command line and arguments in Python; words after -- are positional."""

import warnings
from dataclasses import replace

import pytest
from rich.console import Console

import vitlab
from vitlab import cli
from vitlab.cli import COMMANDS, main
from vitlab.commands.command_line import arguments_of, read_words
from vitlab.data.fingerprint import way_out
from vitlab.data.sources.catalogue import open_source
from vitlab.errors import FLAGS, WeightsWarning, spelled
from vitlab.models.build import build_from_spec
from vitlab.runs.progress import say
from vitlab.weights.formats import huggingface, timm

CALL = "vitlab.open_run('runs/a (1)').resume(data=...)"


@pytest.fixture
def running():
    """Let messages be spelled as those of a command, as `main` does."""
    before = FLAGS.get()
    yield lambda name: FLAGS.set(arguments_of(COMMANDS[name]))
    FLAGS.set(before)


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("finetune", "give validation= or held_out=", "give --validation or --held-out"),
        ("finetune", "give held_out=. Or validation=.", "give --held-out. Or --validation."),
        ("finetune", "the steps (schedule.total=) or image=", "the steps (--schedule.total) or --image"),
        ("finetune", "give teacher=MODEL, or yes=True", "give --teacher MODEL, or --yes"),
        ("finetune", "give schedule.decay='linear' or 'cosine'", "give --schedule.decay linear or cosine"),
        ("convert", "its image size, image=(H, W)", "its image size, --image HxW"),
        ("convert", "with image=(224, 384)", "with --image 224x384"),
        ("convert", "not stated; give heads=INT for width 100", "not stated; give --heads INT for width 100"),
        ("fewshot", "shots= 1 5", "--shots 1 5"),
        ("finetune", "the recipe is recipe='pets', because", "the recipe is --recipe pets, because"),
        ("finetune", "scaled; schedule.peak= sets it", "scaled; --schedule.peak sets it"),
        # not flags of the command
        ("convert", "build with head='linear'", "build with head='linear'"),
        ("predict", "load it with classes=... or schedule.peak=", "load it with classes=... or schedule.peak="),
        # not arguments
        ("resume", f"continue with {CALL}", f"continue with {CALL}"),
        ("resume", way_out(CALL), way_out(CALL)),
        ("resume", "resume(PATH, data=DATA, allow_changed=True)", "resume(PATH, data=DATA, allow_changed=True)"),
        ("finetune", "folder:a?test=b/ and data=...", "folder:a?test=b/ and data=..."),
        ("sweep", "schedule.peak=0.01 and batch=64", "schedule.peak=0.01 and batch=64"),
    ],
)
def test_arguments_that_are_flags_of_the_command_are_spelled_so(running, command, message, shown):
    assert spelled(message) == message, "in Python"
    running(command)
    assert spelled(message) == shown


def test_advice_that_only_python_can_follow_stays_python(running, tiny_spec):
    running("convert")
    spec = replace(tiny_spec, head="mlp")
    for reasons in (timm.refusals(spec, bare=False), huggingface.refusals(spec, bare=False)):
        advice = next(spelled(reason) for reason in reasons if "pre-logits" in reason)
        assert advice.endswith("in Python, call reset_head or build with head='linear'")


def test_a_dataset_is_continued_by_a_call_in_python(running):
    running("resume")
    with pytest.raises(ValueError, match="a torch Dataset") as error:
        open_source("dataset:Squares")
    assert spelled(str(error.value)).endswith("with vitlab.open_run(PATH).resume(data=...)")


@pytest.mark.filterwarnings("always::vitlab.errors.WeightsWarning")
def test_lines_and_warnings_are_spelled_like_errors(monkeypatch, capsys):
    def doctor(out: str = "", conventions: str = "") -> None:
        say(Console(width=200), "to train again, choose another out=")
        warnings.warn("conventions='timm' or 'hf' confirms this", WeightsWarning, stacklevel=1)
        raise ValueError(f"{out}{conventions}choose another out=")

    monkeypatch.setitem(cli.COMMANDS, "doctor", doctor)
    assert main(["doctor"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "to train again, choose another --out\n"
    assert "warning: --conventions timm or hf confirms this\n" in shown.err
    assert shown.err.endswith("vitlab: choose another --out\n")
    assert spelled("out=") == "out=", "after the command"


def test_notes_on_what_a_file_does_not_state_name_the_flag(tiny_spec, tmp_path, capsys):
    vitlab.save_model(build_from_spec(replace(tiny_spec, image=(16, 32))), tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "model.npz"), "--to", "google-npz"]) == 0
    assert "load it with --image 16x32" in capsys.readouterr().out


def test_words_after_two_dashes_are_positional(tmp_path, capsys):
    given = read_words("vitlab predict", COMMANDS["predict"], ["m", "--top", "3", "--", "a.jpg", "--json", "--", "-h"])
    assert given["images"] == ("a.jpg", "--json", "--", "-h")
    assert given["top"] == 3
    assert "json" not in given
    assert main(["predict", str(tmp_path / "none"), "--", "--help"]) == 2
    assert "Usage" not in capsys.readouterr().out


@pytest.mark.parametrize(("words", "is_on"), [(["--json"], True), (["--json=true"], True), (["--no-json=true"], False)])
def test_a_switch_takes_true_false_or_no_value(words, is_on):
    assert read_words("vitlab models", COMMANDS["models"], words) == {"json": is_on}


@pytest.mark.parametrize(
    ("given", "meant"), [("--batch-size", "--batch"), ("--lr", "--schedule.peak"), ("--num_workers", "--workers")]
)
def test_names_of_other_libraries_are_understood(given, meant):
    with pytest.raises(ValueError, match=f"has no flag .*; did you mean {meant}"):
        read_words("vitlab finetune", COMMANDS["finetune"], ["m", "--data", "digits", given, "3"])


def test_the_help_of_data_has_no_indentation_and_says_what_is_required(capsys):
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    said = capsys.readouterr().out
    assert "Look at data sets and store them" in said
    assert "\n    records" not in said
    with pytest.raises(SystemExit):
        main(["data", "dedup", "--help"])
    assert capsys.readouterr().out.count("(required)") == 2
