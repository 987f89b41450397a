"""`vitlab data check vtab`: the state of every task, one line each."""

import subprocess
import sys

import pytest

import vitlab
import vtab_miniatures
from vitlab.cli import main
from vitlab.paper.vtab import TASKS
from vitlab.runs.vtab.tasks import chosen_tasks
from vtab_miniatures import SETS


def test_an_empty_folder_says_what_to_download_and_under_which_terms(tmp_path):
    found = vitlab.check_vtab(tmp_path, quiet=True)
    assert [state.task for state in found.states] == list(TASKS)
    assert {state.state for state in found.states} == {"missing"}
    for state in found.states:
        assert "is missing; put it into" in state.words
        assert " from " in state.advice
        assert "\n" not in state.words


def test_states_are_told_apart_and_tasks_do_not_disturb_each_other(tmp_path):
    tasks = []
    for key in ("svhn", "eurosat", "dtd", "caltech101"):
        write, forms, classes, _ = SETS[key]
        tasks.append(write(tmp_path, forms[0]).task(key, classes))
    (tmp_path / "EuroSAT.zip").write_bytes(b"PK")
    (tmp_path / "dtd-r1.0.1.tar.gz").unlink()
    found = {state.task.key: state for state in vitlab.check_vtab(tmp_path, tasks, quiet=True).states}
    assert {key: state.state for key, state in found.items()} == {
        "caltech101": "ready",
        "dtd": "missing",
        "svhn": "ready",
        "eurosat": "damaged",
    }
    assert "EuroSAT.zip is not a complete zip file" in found["eurosat"].words
    assert "file system" in found["caltech101"].words  # its order is not the authors'
    assert found["svhn"].words == "24 test images, read from its original files"
    assert found["svhn"].advice == ""
    assert found["eurosat"].advice == "EuroSAT.zip from github.com/phelber/EuroSAT"


def test_the_command_lists_every_task_and_returns_1_while_some_are_not_ready(tmp_path, capsys):
    assert main(["data", "check", "vtab", str(tmp_path), "--tasks", "structured"]) == 1
    said = capsys.readouterr().out
    assert all(task.name in said for task in TASKS if task.group == "structured")
    assert "ready: 0 of 8" in said


def test_the_command_on_complete_miniatures_is_as_strict_as_on_the_originals(tmp_path, capsys):
    vtab_miniatures.svhn(tmp_path)
    assert main(["data", "check", "vtab", str(tmp_path), "--tasks", "svhn"]) == 1
    assert "has 60 images" in " ".join(capsys.readouterr().out.split())


def test_a_folder_that_does_not_exist_is_one_error(tmp_path, capsys):
    assert main(["data", "check", "vtab", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "count"),
    [((), 19), (("natural",), 7), (("dSpr-Loc", "dsprites_ori" + "entation"), 2), (("KITTI-dist",), 1)],
)
def test_tasks_are_chosen_by_key_name_or_group(given, count):
    assert len(chosen_tasks(given)) == count


def test_an_unknown_task_names_what_may_be_meant():
    with pytest.raises(ValueError, match=r"no task 'dsprite_location'; did you mean dsprites_location"):
        chosen_tasks(["dsprite_location"])


@pytest.mark.slow
def test_without_the_extra_a_set_that_needs_it_says_so_and_the_others_are_read(tmp_path):
    """In a process in which scipy and h5py cannot be imported."""
    tasks = {}
    for key in ("svhn", "patch_camelyon", "eurosat"):
        write, forms, classes, _ = SETS[key]
        write(tmp_path, forms[0])
        tasks[key] = classes
    program = (
        "import sys\n"
        "import vtab_miniatures as m, pathlib, tempfile\n"
        "made = {}\n"
        "for key in ('svhn', 'patch_camelyon', 'eurosat'):\n"
        "    write, forms, classes, _ = m.SETS[key]\n"
        "    made[key] = write(pathlib.Path(tempfile.mkdtemp()), forms[0]).task(key, classes)\n"
        "sys.modules['scipy'] = sys.modules['h5py'] = sys.modules['scipy.io'] = None\n"
        "import vitlab\n"
        "for state in vitlab.check_vtab(sys.argv[1], list(made.values()), quiet=True).states:\n"
        "    sys.stdout.write(f'{state.task.key} {state.state} {state.words}\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["eurosat"].startswith("ready")
    assert "pip install 'vitlab[vtab]'" in lines["svhn"]
    assert "pip install 'vitlab[vtab]'" in lines["patch_camelyon"]
