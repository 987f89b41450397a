"""The benchmark's runner, its files and its verdicts; nothing here asserts a time."""

import json
import math
import subprocess
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import libraries, results, suites
from bench.__main__ import main
from bench.limit import MatmulLimit, Product, forward_products, inference_products, training_products
from bench.machine import facts
from bench.results import CaseResult, Row, SuiteResult
from bench.runner import LIMIT, Case, Contestant, order, run_case
from bench.suites import endtoend
from bench.suites.inference import without_gradients
from vitlab.counting import count_spec
from vitlab.engines.making import missing_packages
from vitlab.engines.networks import prepared
from vitlab.models.build import build_from_spec
from vitlab.paper.models import model_spec
from vitlab.spec import CONVENTIONS


def contestant(name, output=None, log=None, **options):
    def call():
        if log is not None:
            log.append(name)
        return output

    return Contestant(name, lambda: call, **options)


def failing(name, error, after=0):
    """A contestant whose call fails after so many calls."""
    calls = []

    def call():
        calls.append(name)
        if len(calls) > after:
            raise error

    return Contestant(name, lambda: call)


def case_of(*ratios, unit="s", title="a case"):
    """A result whose baseline takes 1 and whose twin and others have these ratios to it."""
    amounts = [1.0, *(1 / ratio if unit == "s" else ratio for ratio in ratios)]
    names = ["timm", "timm again", *(f"row {n}" for n in range(len(ratios) - 1))]
    rows = tuple(Row(name, (amount,) * 3, (amount,) * 3) for name, amount in zip(names, amounts, strict=True))
    return CaseResult(title, unit, 8, 0, None, rows)


def suite_of(*cases, name="inference"):
    machine = {
        "processor": "a",
        "cores": 2,
        "commit": "abc",
        "packages": {"torch": "2"},
        "load before the start": [0.1],
    }
    return SuiteResult(name, "What it is.", "python -m bench run", 3, machine, cases)


# -- The runner ------------------------------------------------------------------------------------


def test_every_round_measures_every_contestant_once_and_the_baseline_twice():
    log = []
    run_case(Case("", [contestant(name, log=log) for name in "abc"]), rounds=5)
    warm, rounds = log[:3], log[3:]
    assert warm == ["a", "b", "c"]
    assert [sorted(rounds[i : i + 4]) for i in range(0, 20, 4)] == [["a", "a", "b", "c"]] * 5


def test_the_order_is_shuffled_anew_in_every_round_and_the_same_for_the_same_seed():
    names = list("abcdefgh")
    orders = [order(names, 0, number) for number in range(6)]
    assert len(set(map(tuple, orders))) == 6
    assert orders == [order(names, 0, number) for number in range(6)]
    assert orders[0] != order(names, 1, 0)


def test_the_noise_covers_a_call_against_itself_with_its_default_engine_named():
    case = case_of(1.02, 1.0, 1.3)
    default, named = case.rows[2:]
    rows = (*case.rows[:2], replace(default, name="predict"), replace(named, name="predict, engine torch"))
    same = replace(case, rows=rows)
    assert same.noise == pytest.approx(math.log(1.3))
    assert case.noise == results.LEAST


def test_the_twin_is_the_second_row_and_has_as_many_rounds():
    found = run_case(Case("", [contestant("timm"), contestant("other")]), rounds=4)
    assert [row.name for row in found.rows] == ["timm", "timm again", "other"]
    assert [len(row.amounts) for row in found.rows] == [4, 4, 4]
    assert [len(row.cpu) for row in found.rows] == [4, 4, 4]


def test_a_contestant_that_cannot_be_made_is_a_row_with_the_reason():
    def missing():
        raise ModuleNotFoundError("No module named 'rival'")

    def broken():
        raise ValueError("two\nlines")

    made = [contestant("timm"), Contestant("rival", missing), Contestant("broken", broken)]
    found = run_case(Case("", made), rounds=2)
    assert [row.failure for row in found.rows] == [
        *("", "", "not installed: No module named 'rival'", "ValueError: two lines")
    ]
    assert found.rows[2].amounts == ()
    assert found.ratio(found.rows[2]) is None
    assert "not installed" in results.markdown(suite_of(found))


def test_a_contestant_that_fails_in_a_round_loses_its_numbers_and_stops_no_other():
    found = run_case(Case("", [contestant("timm"), failing("late", RuntimeError("no memory"), after=2)]), rounds=3)
    assert found.rows[2].failure == "in round 2: RuntimeError: no memory"
    assert found.rows[2].amounts == ()
    assert len(found.baseline.amounts) == 3


def test_a_baseline_that_fails_leaves_the_others_without_ratios():
    found = run_case(Case("", [failing("timm", RuntimeError("broken")), contestant("other")]), rounds=2)
    assert [bool(row.failure) for row in found.rows] == [True, True, False]
    assert found.ratio(found.rows[2]) is None
    assert results.markdown(suite_of(found))


def test_logits_are_compared_with_the_baselines():
    truth = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
    near, far = truth + 0.04, truth.flip(1)
    made = [contestant("timm", truth), contestant("near", near), contestant("far", far)]
    made += [contestant("another model", far, is_compared=False), contestant("other shape", truth[:1])]
    rows = {row.name: row for row in run_case(Case("", made), rounds=1).rows}
    assert rows["near"].difference == pytest.approx(0.01)
    assert (rows["near"].same_answers, rows["far"].same_answers) == (1, 0)
    assert (rows["another model"].difference, rows["another model"].same_answers) == (None, None)
    assert (rows["other shape"].difference, rows["other shape"].same_answers) == (None, 0)


def test_class_numbers_are_compared_with_the_baselines():
    made = [contestant("timm", torch.tensor([1, 2, 3, 4])), contestant("other", torch.tensor([1, 2, 3, 5]))]
    assert run_case(Case("", made), rounds=1).rows[2].same_answers == 0.75


def test_an_amount_that_a_contestant_reports_is_taken_as_it_is():
    made = [contestant("timm", 100), contestant("less", 80)]
    found = run_case(Case("", made, unit="MB", is_reported=True), rounds=2)
    assert [row.amounts for row in found.rows] == [(100, 100), (100, 100), (80, 80)]
    assert [row.cpu for row in found.rows] == [(), (), ()]
    assert found.ratio(found.rows[2]) == pytest.approx(0.8)


def test_a_case_of_long_calls_has_fewer_rounds():
    log = []
    found = run_case(Case("", [contestant("timm", log=log)], most_rounds=2), rounds=5)
    assert [len(row.amounts) for row in found.rows] == [2, 2]
    assert len(run_case(Case("", [contestant("timm")], most_rounds=9), rounds=3).rows[0].amounts) == 3


def test_busy_loops_run_beside_a_case_and_end_with_it(monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    run_case(Case("", [Contestant("timm", lambda: lambda: [one.poll() for one in started])], beside=2), rounds=1)
    assert len(started) == 2
    assert all(one.returncode is not None for one in started)


def test_the_limit_is_measured_in_every_round():
    class Counted:
        rounds = 0

        def measure(self):
            self.rounds += 1

        def seconds(self):
            return 0.5 * self.rounds

    found = run_case(Case("", [contestant("timm")], limit=Counted), rounds=4)
    assert found.limit == 2
    assert LIMIT not in [row.name for row in found.rows]


# -- The limit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ViT-Ti/16", "ViT-B/32"])
def test_the_products_of_a_forward_pass_are_the_macs_of_the_model(name):
    spec = model_spec(name, classes=1000, head="linear")
    macs = sum(math.prod(product) * number for product, number in forward_products(spec, 3).items())
    assert macs == 3 * count_spec(spec).macs


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_the_products_of_inference_are_those_that_the_engine_computes(pool):
    spec = model_spec("ViT-Ti/16", classes=1000, head="linear", pool=pool)
    with torch.device("meta"):
        network, images = prepared(build_from_spec(spec)), torch.empty(3, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.nn.attention.sdpa_kernel([]):
        network(images)
    macs = sum(math.prod(product) * number for product, number in inference_products(spec, 3).items())
    assert macs == counter.get_total_flops() // 2
    assert (macs < 3 * count_spec(spec).macs) == (pool == "class")


def test_a_training_step_has_three_products_for_each_of_the_forward_pass_but_the_first():
    spec = model_spec("ViT-Ti/16", classes=1000, head="linear")
    stem = 2 * 196 * 3 * 16**2 * spec.width
    macs = sum(math.prod(product) * number for product, number in training_products(spec, 2).items())
    assert macs == 3 * 2 * count_spec(spec).macs - stem


def test_the_limit_sums_the_best_way_of_every_product_as_often_as_it_occurs():
    dense, batched = Product(1, 4, 5, 6), Product(2, 3, 4, 5)
    limit = MatmulLimit({dense: 3, batched: 10})
    limit.measure()
    assert set(limit.found[batched]) == {"bmm"}
    assert {"linear", "mm"} <= set(limit.found[dense])
    limit.found = {dense: {"linear": [9, 2, 1], "mm": [3, 3, 3]}, batched: {"bmm": [0.5, 0.1, 9]}}
    assert limit.seconds() == 3 * 2 + 10 * 0.5


# -- Medians, quartiles, files ---------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_ratios_of_rounds_and_lies_between_their_quartiles():
    base, own = Row("timm", (1.0, 2.0, 9.0)), Row("other", (0.9, 0.5, 9.0))  # per round 1.11, 4 and 1
    case = replace(case_of(1.0), rows=(base, base, own))
    assert case.ratio(own) == pytest.approx(1 / 0.9)  # of the medians it would be 2.2
    assert case.quartiles(own) == pytest.approx(((1 + 1 / 0.9) / 2, (1 / 0.9 + 4) / 2))
    memory = replace(case, unit="MB")
    assert memory.ratio(own) == pytest.approx(0.9)


def test_no_difference_is_the_spread_of_the_twin_and_at_least_five_per_cent():
    base, twin = Row("timm", (1.0,) * 5), Row("timm again", (0.5, 0.8, 1.0, 1.0, 1.1))
    case = replace(case_of(1.0), rows=(base, twin, Row("other", (0.85,) * 5)))
    assert case.ratio(twin) == 1
    assert case.quartiles(twin) == pytest.approx((1.0, 1.25))
    assert case.noise == pytest.approx(math.log(1.25))
    assert results.marked(case, case.rows[2]) == "1.18 ="
    assert case_of(1.01).noise == results.LEAST
    assert replace(case, rows=(base, Row("timm again", (0.8,)))).noise == pytest.approx(math.log(1.25))


def test_a_result_survives_its_file(tmp_path):
    case = replace(
        case_of(1.02, 2.0), limit=0.3, rows=(*case_of(1.02, 2.0).rows, Row("x", (), failure="not installed"))
    )
    written = suite_of(case, case_of(1.0, 0.5, unit="MB", title="memory"))
    path, page = results.save(written, tmp_path)
    assert results.load(path) == written
    assert json.loads(path.read_text())["cases"][0]["rows"][0]["amounts"] == [1.0, 1.0, 1.0]
    text = page.read_text()
    assert "| timm again | 8.2 | 1.02 = |" in text
    assert "| row 0 | 16.0 | 2.00 |" in text
    assert "torch 2" in text


def test_machine_facts_name_what_changes_speed():
    found = facts()
    assert found["cores"] >= 1
    assert {
        "processor",
        "instructions",
        "packages",
        "torch threads",
        "settings",
        "load before the start",
        "commit",
        "date",
    } <= {*found}
    assert "OMP_WAIT_POLICY" in found["settings"]
    json.dumps(found)


# -- Comparing -------------------------------------------------------------------------------------


def verdicts(first, second):
    found = results.compare({"inference": suite_of(first)}, {"inference": suite_of(second)})
    return {one.name: one.verdict for one in found}


def test_a_comparison_marks_what_the_twins_explain_as_no_difference():
    first = case_of(1.01, 1.0, 1.0, 1.0, 1.0)
    second = case_of(0.98, 1.04, 1.2, 0.8, 0.97)
    assert verdicts(first, second) == {
        "timm": "baseline",
        "timm again": "no difference",
        "row 0": "no difference",
        "row 1": "better",
        "row 2": "worse",
        "row 3": "no difference",
    }
    noisy = case_of(1.3, 1.0, 1.0, 1.0, 1.0)
    assert verdicts(noisy, second)["row 1"] == "no difference"


def test_less_memory_is_better():
    first, second = case_of(1.0, 1.0, 1.0, unit="MB"), case_of(1.0, 0.8, 1.2, unit="MB")
    assert verdicts(first, second)["row 0"] == "better"
    assert verdicts(first, second)["row 1"] == "worse"


def test_a_machine_that_is_slower_as_a_whole_is_no_difference():
    first = case_of(1.0, 1.5)
    slow = replace(first, rows=tuple(replace(row, amounts=tuple(2 * one for one in row.amounts)) for row in first.rows))
    assert verdicts(first, slow)["row 0"] == "no difference"


def test_rows_that_one_run_lacks_are_named():
    first, second = case_of(1.0, 1.0), case_of(1.0, 1.0, 1.0)
    failed = replace(second, rows=(*second.rows[:-1], Row("row 1", (), failure="not installed")))
    assert verdicts(first, second)["row 1"] == "only in the second"
    assert verdicts(second, first)["row 1"] == "only in the first"
    assert verdicts(failed, failed)["row 1"] == "in neither"


def test_the_command_compares_two_files_or_two_folders(tmp_path, capsys):
    for folder, ratio in (("a", 1.0), ("b", 1.5)):
        results.save(suite_of(case_of(1.0, ratio)), tmp_path / folder)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "| inference | a case | row 0 | 1.00 | 1.50 | 1.50 | better |" in capsys.readouterr().out
    file = str(tmp_path / "a" / "inference.json")
    assert main(["compare", file, file]) == 0
    assert "better" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"give a SUITE\.json"):
        main(["compare", file, str(tmp_path / "c")])


def test_a_comparison_says_that_conditions_differ(tmp_path, capsys):
    result = suite_of(case_of(1.0, 1.5))
    for folder, rounds in (("a", 3), ("b", 9)):
        results.save(replace(result, rounds=rounds), tmp_path / folder)
    for second, said in (("b", ["inference: the first run has 3 rounds on a, the second 9 rounds on a"]), ("a", [])):
        assert main(["compare", str(tmp_path / "a"), str(tmp_path / second)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if not line.startswith("|")] == said


@pytest.mark.parametrize("amount", ["fast", 0.0, -1.0, float("nan"), None])
def test_amounts_that_no_measurement_has_are_refused(amount, tmp_path):
    path, _ = results.save(suite_of(case_of(1.0)), tmp_path)
    found = json.loads(path.read_text())
    found["cases"][0]["rows"][1]["amounts"][0] = amount
    path.write_text(json.dumps(found))
    with pytest.raises(SystemExit, match="is not a result of `bench run`"):
        main(["compare", str(path), str(path)])


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_rounds_are_one_or_more(rounds, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["run", "fewshot", "--quick", f"--rounds={rounds}", "--out", str(tmp_path / "out")])
    assert "is not a whole number of rounds, 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to_is_found_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(suites, "open_suite", None)
    with pytest.raises(SystemExit):
        main(["run", "fewshot", "--out", str(tmp_path / "file")])
    assert "file cannot be a folder: File exists" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["# vitlab", "[]", "{}", '{"cases": [{"rows": 3}]}'])
def test_a_file_that_is_no_result_is_one_line(content, tmp_path):
    page = tmp_path / "README.md"
    page.write_text(content)
    with pytest.raises(SystemExit, match=r"README\.md is not a result of `bench run`; give a SUITE\.json"):
        main(["compare", str(page), str(page)])


def test_runs_without_a_common_suite_are_not_compared(tmp_path):
    for name in ("inference", "memory"):
        results.save(suite_of(case_of(1.0), name=name), tmp_path / name)
    with pytest.raises(SystemExit, match="first run has inference and the second memory: no suite is in both"):
        main(["compare", str(tmp_path / "inference"), str(tmp_path / "memory")])


def test_pages_are_written_again_from_the_rounds(tmp_path, capsys):
    _, page = results.save(suite_of(case_of(1.0, 2.0)), tmp_path / "avx2")
    before = page.read_text()
    page.write_text("old")
    assert main(["render", str(tmp_path)]) == 0
    assert page.read_text() == before
    assert str(page) in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"holds no \.json file"):
        main(["render", str(tmp_path / "nothing")])


# -- The suites ------------------------------------------------------------------------------------


def test_every_suite_is_listed_with_its_first_line(capsys):
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert {"inference", "busy", "endtoend", "training", "memory", "data", "fewshot", "startup"} <= set(suites.SUITES)
    for name in suites.SUITES:
        assert f"{name} " in listed
        assert suites.open_suite(name).ROUNDS >= 3


def test_a_suite_that_does_not_exist_is_an_error_that_names_the_others(capsys):
    with pytest.raises(SystemExit):
        main(["run", "speed"])
    assert "no suite is named speed; there are startup" in capsys.readouterr().err


def test_a_suite_writes_what_it_measured(tmp_path):
    assert main(["run", "fewshot", "--quick", "--rounds", "1", "--out", str(tmp_path)]) == 0
    found = results.load(tmp_path / "fewshot.json")
    assert found.command == "python -m bench run fewshot --rounds 1 --quick"
    rows = {row.name: row for row in found.cases[2].rows}
    assert rows["vitlab"].same_answers == 1
    assert rows["vitlab"].difference < 1e-6


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages("onnxruntime")), reason="onnxruntime is not installed")
def test_the_first_automatic_choice_is_timed_and_leaves_the_user_s_cache_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "own"))
    found = run_case(endtoend.opening("ViT-Ti/32", tmp_path), rounds=1)
    names = ["engine torch", "engine torch again", "engine auto, first time", "engine auto, remembered"]
    assert [(row.name, row.failure, len(row.amounts)) for row in found.rows] == [(name, "", 1) for name in names]
    (remembered,) = tmp_path.iterdir()  # the first times have removed theirs
    assert len(list(remembered.glob("*.json"))) == 1


@pytest.mark.slow
def test_one_model_computes_the_same_in_every_library():
    pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    conventions = CONVENTIONS["timm"]
    spec = model_spec("ViT-Ti/32", classes=10, head="linear", image=(64, 64), conventions=conventions)
    model = libraries.random_model(spec)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    truth = without_gradients(model, images)()
    for theirs in (libraries.timm_model(model), libraries.torchvision_model(model)):
        assert (without_gradients(theirs, images)() - truth).abs().max() < 1e-5
