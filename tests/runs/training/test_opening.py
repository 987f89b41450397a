"""To open and fingerprint millions of files takes minutes: whoever starts or continues a run waits for that once."""

import pytest

import ranks
from openings import OPENED, READ, Told, start_slowly, told
from vitlab import save_model
from vitlab.cli import main
from vitlab.data.sources.catalogue import KINDS, Kind
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec

ONCE = {OPENED: 1, READ: 1}
SHORT = [
    "--image",
    "8",
    "--batch",
    "6",
    "--schedule.total",
    "2",
    "--schedule.warmup",
    "1",
    "--augmentation.crop",
    "none",
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "told", Kind(Told, "counts how often it is opened"))
    return tmp_path / "data"


def pretrain(data, out, *more):
    small = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.mlp", "16"]
    return ["pretrain", "ViT-Ti/4", "--data", f"told:{data}", *SHORT, *small, "--out", str(out), *more]


@pytest.fixture
def model(tmp_path):
    spec = ViTSpec(patch=4, layers=1, width=16, mlp=16, heads=2, image=(8, 8), classes=0, head="linear")
    save_model(build_from_spec(spec), tmp_path / "model")
    return tmp_path / "model"


def test_a_pretraining_opens_each_of_its_sets_once(data, tmp_path):
    more = {part: tmp_path / part for part in ("validation", "test")}
    flags = [word for part, path in more.items() for word in (f"--{part}", f"told:{path}")]
    assert main(pretrain(data, tmp_path / "run", *flags)) == 0
    assert told(data) == [ONCE]
    assert [told(path) for path in more.values()] == [[ONCE]] * 2  # read for their record, as the training data is


def test_a_finetuning_opens_its_data_once(data, model, tmp_path):
    words = ["finetune", str(model), "--data", f"told:{data}", *SHORT, "--held-out", "0.25"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert told(data) == [ONCE]


def test_a_run_that_goes_on_opens_its_data_once_and_looks_whether_it_is_the_same(data, tmp_path):
    assert main(pretrain(data, tmp_path / "run")) == 0
    (tmp_path / "run" / "result.json").unlink()
    data.unlink()
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert told(data) == [ONCE]


def test_a_run_that_a_launcher_starts_again_does_so_too(data, tmp_path, monkeypatch, capsys):
    words = pretrain(data, tmp_path / "run")
    assert main(words) == 0
    (tmp_path / "run" / "result.json").unlink()
    data.unlink()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main(words) == 0
    assert told(data) == [ONCE]
    assert "the ranks were restarted; the run in" in capsys.readouterr().out
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(Told, "id", lambda self, index: f"another {index}")
    assert main(words) == 2
    assert "the data has changed" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_sweep_opens_its_data_once_for_its_plan_and_once_for_each_run(data, model, tmp_path):
    words = ["sweep", str(model), "--data", f"told:{data}", "--test", f"told:{tmp_path / 'test'}", *SHORT]
    words += ["--rates", "0.01,0.03", "--held-out", "0.25", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    runs = list((tmp_path / "out").glob("*/*/run.json"))
    assert len(runs) == 3
    assert told(data) == [{OPENED: 1 + len(runs), READ: 1 + len(runs)}]


@pytest.mark.slow
def test_each_rank_opens_the_data_once_and_may_take_longer_than_ranks_wait(tmp_path):
    """Half as long again as an exchange of numbers may take: the first, which has it open, waits for the others."""
    timeout, said = 8.0, tmp_path / "said"
    words = pretrain(tmp_path / "data", tmp_path / "run", "--parallel", "fsdp", "--timeout", str(timeout))
    codes = ranks.run_ranks(2, start_slowly, words, 1.5 * timeout, said=said)
    assert codes == [0, 0], said.read_text()
    assert told(tmp_path / "data") == [ONCE] * 2
