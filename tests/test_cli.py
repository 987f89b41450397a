"""The command line: every command has help, tables and JSON say the same, mistakes are told."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import pytest
import torch

import vitlab
from vitlab import doctor
from vitlab.cli import COMMANDS, WITHOUT_TORCH, main
from vitlab.commands.data import DATA_COMMANDS
from vitlab.process import busy


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert COMMANDS[command].__doc__.splitlines()[0][:40] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("words", "commands"), [([], COMMANDS), (["data"], DATA_COMMANDS)])
def test_the_list_of_commands_has_a_sentence_for_each(words, commands, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    rows = dict(re.findall(r"^  ([\w ]+?)  +(\S.+?) *$", capsys.readouterr().out, re.MULTILINE))
    assert list(rows) == list(commands)
    for name, sentence in rows.items():
        assert len(sentence) > 20
        assert " ".join(commands[name].__doc__.split()).startswith(sentence)


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)])
def test_help_shows_nothing_of_how_a_default_is_stored(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = " ".join(re.sub("[│╭╰─╮╯]", " ", capsys.readouterr().out).split())
    for internal in ("{None", "default: ''", "default: None", "default: )"):
        assert internal not in shown


def test_a_word_that_may_be_left_out_looks_so(capsys):
    with pytest.raises(SystemExit):
        main(["download", "--help"])
    assert "[NAME]" in capsys.readouterr().out.splitlines()[0]


def test_the_help_of_the_demo_names_its_trainings_and_its_report(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("Pre-train", "letters", "fine-tune", "from scratch", "few labels", "report"):
        assert words in printed


def test_who_stops_reading_is_no_error():
    """As `vitlab finetune --help | head -1` in a shell."""
    code = "import sys; from vitlab.cli import main; sys.exit(main(['finetune', '--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        said = child.stderr.read().decode()
    assert (child.returncode, said) == (0, "")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vitlab {vitlab.__version__}\n"


def test_models_as_table_and_as_json(capsys):
    assert main(["models", "--image", "384", "--head", "linear"]) == 0
    table = capsys.readouterr()
    assert main(["models", "--image", "384", "--head", "linear", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    cost = vitlab.count("ViT-B/16", image=384, head="linear")
    assert rows["ViT-B/16"]["parameters"] == cost.parameters
    assert f"{cost.parameters:,}" in table.out
    assert rows["R50x1"] | {"layers": 16, "width": 2048, "heads": 0} == rows["R50x1"]
    assert rows["R50+ViT-B/16"]["tokens"] == 24 * 24 + 1
    assert "ViT-H/14" not in rows  # 384 is no multiple of 14
    assert "left out ViT-H/14" in table.err
    assert "378x378 or 392x392" in table.err


def test_doctor_names_versions_device_and_extras(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for word in ("vitlab", "torch", "pillow", "safetensors", "device", "threads", "[demo]"):
        assert word in printed


def test_doctor_names_the_engines_their_cache_and_the_packing_decision(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path))
    assert main(["doctor"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "engines torch, plain, compiled" in printed
    assert f"engine cache {tmp_path} (delete its .json files" in printed
    assert "packing not measured yet" in printed


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="an accelerator is here")
def test_doctor_says_what_is_used_of_the_device_and_why(capsys):
    assert main(["doctor"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    shown = dict(re.split(" {2,}", line, maxsplit=1) for line in lines if "  " in line)
    assert shown["attention"].startswith("PyTorch chooses flash attention in fp32 and bf16; with relative positions")
    assert shown["channels last"] == "not used: only CUDA devices convolve faster with it"
    assert shown["pinned memory"] == "not used: batches for cpu need none"
    assert shown["tf32"] == "not available: only NVIDIA GPUs have TF32, and the device is cpu"


def test_doctor_says_how_threads_wait_and_who_decided_it(capsys, monkeypatch):
    def waiting():
        assert main(["doctor"]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("waiting")]
        return line.split(maxsplit=1)[1].strip()

    for name in busy.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert waiting() == "threads spin; OMP_WAIT_POLICY=PASSIVE lets them sleep"
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    assert waiting() == "as requested: GOMP_SPINCOUNT=5"
    monkeypatch.setattr(doctor, "chosen", ["other programs use 1.5 of 2 processors"])
    assert "PASSIVE, chosen at the start because other programs use 1.5 of 2 processors" in waiting()


TUNE = ("finetune", "m", "--data", "digits")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "vitlab needs a command; its commands are demo, models"),
        (("--nonsense",), "vitlab has no flag --nonsense; its commands are demo, models"),
        (("data",), "vitlab data needs a command; its commands are check, check vtab, prepare vtab"),
        (("models", "--classs", "5"), "vitlab models has no flag --classs; did you mean --classes?"),
        (("models", "--head", "big"), "--head is 'big'; expected mlp or linear"),
        (("models", "-x"), "vitlab models has no flag -x"),
        (("predict",), "vitlab predict needs MODEL; see vitlab predict --help"),
        (("finetune",), "vitlab finetune needs MODEL and --data SPEC"),
        (("finetune", "m", "n", "--data", "digits"), "vitlab finetune does not take 'n'; it takes MODEL"),
        (("finetune", "m", "--data"), "--data needs a value: --data SPEC"),
        (("finetune", "m", "--data", "--yes"), "--data needs a value: --data SPEC"),
        ((*TUNE, "--epochs", "1.5"), "--epochs is '1.5'; expected a whole number"),
        ((*TUNE, "--seed=x"), "--seed is 'x'; expected a whole number"),
        ((*TUNE, "--held_out", "half"), "--held-out is 'half'; expected a number"),
        ((*TUNE, "--micro-batch", "1.5"), "--micro-batch is '1.5'; expected a whole number"),
        ((*TUNE, "--precision", "fp8"), "--precision is 'fp8'; expected fp32, tf32 or bf16"),
        ((*TUNE, "--no-report=1"), "--no-report is '1'; expected true, false or no value"),
        (("fewshot", "--train", "a", "--test", "b", "--shots", "1", "x"), "--shots is 'x'; expected a whole number"),
        (("fewshot", "--train", "a", "--test", "b", "--l2", "x"), "expected mean-rank, held-out or a number"),
        (("transfer", "m", "--cifar10", "a"), "--cifar10 needs a value: --cifar10 TRAIN TEST"),
        (("data", "check"), "vitlab data check needs SPEC"),
        (("report", "extra"), "vitlab report does not take 'extra'; it takes flags only"),
    ],
)
def test_words_that_a_command_cannot_take_are_one_line(words, told, capsys):
    assert main(list(words)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("vitlab: ")
    assert told in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)])
def test_help_shows_every_flag_once(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = re.findall(r"^│ (--[\w-]+)(?:, (--no-[\w-]+))?", capsys.readouterr().out, re.MULTILINE)
    names = [flag.removeprefix("--").removeprefix("no-") for flag, _ in shown]
    assert len(names) == len(set(names))
    assert [pair for pair in shown if pair[1]] in ([], [("--report", "--no-report")])  # on by default, so both


def test_a_switch_can_be_taken_back(capsys):
    assert main(["models", "--json", "--no-json"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["model", "paper"]


@pytest.mark.parametrize("help", [[], ["--help"], ["-h"]])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bogus"], "vitlab has no command 'bogus'; its commands are demo, models"),
        (["pedict"], "vitlab has no command 'pedict'; did you mean vitlab predict?"),
        (["train"], "vitlab has no command 'train'; did you mean vitlab finetune or vitlab pretrain?"),
        (["chek"], "did you mean vitlab data check?"),
        (
            ["data", "bogus"],
            "vitlab data has no command 'bogus'; its commands are check, check vtab, prepare vtab",
        ),
        (["data", "chek"], "vitlab data has no command 'chek'; did you mean vitlab data check?"),
    ],
)
def test_an_unknown_command_is_an_error_even_with_help(words, help, told, capsys):
    assert main([*words, *help]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("strange", ["--", "--json", "-v"])
def test_an_unknown_flag_before_a_command_is_one_line(strange, capsys):
    assert main([strange, "models"]) == 2
    assert capsys.readouterr().err.startswith(f"vitlab: vitlab has no flag {strange}; its commands are demo, models")


def test_help_before_an_unknown_command_is_an_error_too(capsys):
    assert main(["--help", "bogus"]) == 2
    assert "vitlab has no command 'bogus'" in capsys.readouterr().err


def test_output_into_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m vitlab.cli models --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "[\n"
    assert "Traceback" not in done.stderr


def test_a_stream_shows_what_it_cannot_encode_as_escapes():
    """As the name of a picture where the terminal knows only ASCII."""
    code = "from vitlab.cli import COMMANDS, main; COMMANDS['models'] = lambda: print('gr\\xfcn'); main(['models'])"
    surroundings = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=surroundings)
    assert (done.stdout, done.stderr) == ("gr\\xfcn\n", "")


WATCHED = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.stderr.write("<torch>")
            sys.stderr.flush()

sys.meta_path.insert(0, Watch())
from vitlab.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_what_takes_its_time_is_said_before_it_does():
    """Torch takes seconds to load: a line comes first. Elsewhere than on a terminal it stays."""
    words = [sys.executable, "-c", WATCHED, "predict", "absent", "x.png"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("loading PyTorch ...\n<torch>vitlab: absent: no such file")
    assert done.returncode == 2


def test_on_a_terminal_the_line_goes_away_again():
    parent, child = pty.openpty()
    words = [sys.executable, "-c", WATCHED, "predict", "absent", "x.png"]
    surroundings = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(words, stdin=child, stdout=child, stderr=child, env=surroundings) as running:
        os.close(child)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that its last writer has gone
            while part := os.read(parent, 4096):
                shown += part
    os.close(parent)
    assert running.returncode == 2
    first, _, rest = shown.partition(b"<torch>")
    assert b"loading PyTorch ..." in first
    assert rest.index(b"\x1b[2K") < rest.index(b"loading absent")
    assert b"\x1b[?25l" not in shown  # the cursor is never hidden: an interrupt may end the process here


def test_flags_are_read_before_anything_is_loaded():
    words = [sys.executable, "-c", WATCHED, "predict", "absent", "--bogus"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "loading" not in done.stderr
    assert "<torch>" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH - {"data"}))
def test_a_command_that_announces_nothing_loads_no_torch(name, tmp_path):
    words = [name, *(["--ledger", str(tmp_path / "absent")] if name == "report" else [])]
    done = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False)
    assert "<torch>" not in done.stderr
    assert "Traceback" not in done.stderr


def test_dir_shows_the_public_names_and_nothing_internal():
    """In a fresh interpreter, where nothing has been used yet."""
    code = "import sys, vitlab; print('torch' in sys.modules, *(name for name in dir(vitlab) if name[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", *sorted(vitlab.__all__)]


def test_names_of_the_package():
    assert all(callable(getattr(vitlab, name)) for name in vitlab.__all__)
    with pytest.raises(AttributeError, match="it offers"):
        vitlab.no_such_thing  # noqa: B018


@pytest.mark.parametrize("image", ["", "0", "0x16", "224x", "x224", "1e3"])
def test_a_size_that_is_none_is_refused_by_its_flag(image, capsys):
    for arguments in (["--image", image], [f"--image={image}"]):
        assert main(["pretrain", "ViT-Ti/16", "--data", "digits", *arguments]) == 2
        complaint = capsys.readouterr().err
        assert complaint.startswith(f"vitlab: --image {image!r} is ")
        assert complaint.count("\n") == 1


@pytest.mark.parametrize("share", ["inf", "-inf", "nan", "-0.1", "1", "1.5"])
def test_a_held_out_share_that_is_none_is_refused_by_its_flag(share, capsys):
    assert main(["pretrain", "ViT-Ti/16", "--data", "digits", f"--held-out={share}"]) == 2
    assert f"vitlab: --held-out is {float(share)}; expected a share of the training images" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["inf", "nan", "0"])
def test_a_timeout_without_an_end_is_refused(timeout, capsys, tmp_path):
    out = tmp_path / "run"
    assert main(["pretrain", "ViT-Ti/16", "--data", "digits", "--timeout", timeout, "--out", str(out)]) == 2
    assert f"timeout {float(timeout)} is outside 1..604,800 seconds" in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_a_link_to_itself_is_called_that(tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for words in (
        ["data", "check", f"folder:{loop}", "--out", str(tmp_path / "out")],
        ["pretrain", "ViT-Ti/16", "--data", "digits", "--out", str(loop)],
        ["pretrain", "ViT-Ti/16", "--data", f"csv:{loop}"],
        ["finetune", str(loop), "--data", "digits"],
        ["report", "--ledger", str(loop)],
        ["resume", str(loop)],
    ):
        assert main(words) == 2, words
        assert "is a symbolic link" in capsys.readouterr().err, words
    assert not (tmp_path / "out").exists()
