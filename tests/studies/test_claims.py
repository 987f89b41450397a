"""Claims and the rule that decides them: intervals, thresholds, pairing by seed, cells and seeds that are missing."""

import math
import statistics
from dataclasses import replace

import pytest

from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Claim, Comparison, GridCell, Row, Term, above, alike, gains_more
from vitlab.studies.scales import OFFERED, TINY, find_scale
from vitlab.studies.study import Cell, check_claims, check_grid
from vitlab.studies.verdicts import T_975, by_seed, interval, judge, verdict

GOOD, BAD = {"kind": "good"}, {"kind": "bad"}


def rows(values, value="top-1 %", task="a"):
    """A row for each kind and seed: {kind: [value of seed 0, ...]}."""
    return [
        Row("own", "tiny", {"kind": kind, "task": task}, seed, value, {value: one})
        for kind, seeds in values.items()
        for seed, one in enumerate(seeds)
        if one is not None
    ]


def grid(found):
    """The cells that some rows are of."""
    return list({str(row.levels): GridCell(row.levels, row.measure) for row in found}.values())


def judged(comparison, found):
    return judge(comparison, found, grid(found))


def test_the_quantiles_are_those_of_students_t():
    stats = pytest.importorskip("scipy.stats")
    assert tuple(pytest.approx(stats.t.ppf(0.975, n), abs=5e-4) for n in range(1, 31)) == T_975


def test_the_interval_of_three_values_is_the_textbooks():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 * 1.0 / math.sqrt(3))
    assert (found.low, found.high) == (found.mean - found.half, found.mean + found.half)


@pytest.mark.parametrize(
    ("good", "bad", "answer"),
    [
        ([80, 81, 82], [70, 71.1, 71.9], "confirmed"),
        ([70, 71, 72], [80, 81.1, 81.9], "not confirmed"),
        ([80, 81, 82], [75, 81, 85], "undecided"),
        ([80, 81], [70, 71], "not run yet"),
        ([80, 81, None], [70, 71, 72], "not run yet"),  # two pairs
    ],
)
def test_a_difference_is_decided_by_its_interval(good, bad, answer):
    assert judged(above("top-1 %", GOOD, BAD), rows({"good": good, "bad": bad})).answer == answer


def test_differences_are_paired_by_seed():
    """Seeds differ by 20 points, the kinds by one in every seed: only paired is that decided."""
    found = judged(above("top-1 %", GOOD, BAD), rows({"good": [51, 71.1, 91], "bad": [50, 70, 90]}))
    assert found.answer == "confirmed"
    assert found.interval.mean == pytest.approx(1.0333, abs=1e-3)


def test_a_threshold_moves_the_decision():
    values = rows({"good": [80, 81, 82], "bad": [79, 80.1, 80.9]})
    assert judged(above("top-1 %", GOOD, BAD, by=0.0), values).answer == "confirmed"
    assert judged(above("top-1 %", GOOD, BAD, by=3.0), values).answer == "not confirmed"


@pytest.mark.parametrize(
    ("bad", "answer"),
    [([80.1, 81, 82.1], "confirmed"), ([70, 71, 72.2], "not confirmed"), ([78, 82, 83], "undecided")],
)
def test_alike_means_that_the_whole_interval_is_within_the_margin(bad, answer):
    found = judged(alike("top-1 %", GOOD, BAD, within=2.0), rows({"good": [80, 81, 82], "bad": bad}))
    assert found.answer == answer


def test_an_undecided_claim_says_how_many_seeds_would_decide_it():
    values = [3.0, -1.0, 2.0, 1.0]
    found = judged(
        Comparison((Term(1.0, ()),), "x", "above", 0.0),
        [Row("own", "tiny", {}, n, "x", {"x": v}) for n, v in enumerate(values)],
    )
    assert found.answer == "undecided"
    n, mean, deviation = found.seeds_needed, statistics.fmean(values), statistics.stdev(values)
    assert mean - T_975[n - 2] * deviation / math.sqrt(n) > 0
    assert mean - T_975[n - 3] * deviation / math.sqrt(n - 1) <= 0


def test_a_difference_that_is_nearly_zero_needs_more_seeds_than_are_worth_naming():
    values = rows({"good": [80, 70, 90.001], "bad": [70, 80, 90]})
    assert judged(above("top-1 %", GOOD, BAD), values).seeds_needed is None


def test_a_term_is_the_mean_over_the_factors_it_does_not_name_of_seeds_that_have_all_cells():
    both = rows({"good": [80, 80, 80, 80], "bad": [70, 70, 70, 70]}) + rows(
        {"good": [90, 90, 90], "bad": [60, 60, 60]}, task="b"
    )
    found = by_seed(above("top-1 %", GOOD, BAD), both, grid(both))
    assert found == {0: 20.0, 1: 20.0, 2: 20.0}  # seed 3 has only task a


@pytest.mark.parametrize("missing", ["no row", "no value"])
def test_a_cell_that_no_seed_has_decides_nothing(missing):
    """Without the hard task of the other kind, the means would be of different tasks."""
    both = rows({"good": [80, 81, 82], "bad": [90, 91, 92]}) + rows(
        {"good": [20, 21, 22], "bad": [30, 31, 32]}, task="b"
    )
    cells, lost = grid(both), {"kind": "bad", "task": "b"}
    assert judge(above("top-1 %", GOOD, BAD), both, cells).answer == "not confirmed"
    left = [row for row in both if row.levels != lost]
    if missing == "no value":
        left += [replace(row, values={}) for row in both if row.levels == lost]
    found = judge(above("top-1 %", GOOD, BAD), left, cells)
    assert (found.answer, found.seeds) == ("not run yet", 0)
    assert found.why == "0 seeds have a value in every cell; it takes 3"


def test_groups_of_cells_with_different_levels_are_not_compared():
    both = rows({"good": [80, 81, 82], "bad": [90, 91, 92]}) + rows({"good": [20, 21, 22]}, task="b")
    found = judged(above("top-1 %", GOOD, BAD), both)
    assert found.answer == "not run yet"
    assert found.why == "cells with kind good and with kind bad have different levels of task"
    named = judged(above("top-1 %", {**GOOD, "task": "a"}, {**BAD, "task": "a"}), both)
    assert named.answer == "not confirmed"


def test_cells_of_another_measure_are_not_compared():
    """ImageNet's ReaL labels are a task of some models alone, with a value of their own."""
    both = rows({"good": [80, 81, 82], "bad": [70, 71, 72]}) + rows({"good": [95, 95, 95]}, value="ReaL %", task="b")
    assert judged(above("top-1 %", GOOD, BAD), both).interval.mean == pytest.approx(10)


CELLS = [Cell({"kind": kind}, TINY.few_shot(), TINY.pretrained("ViT-B/16")) for kind in ("good", "bad")]


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        (above("few-shot %", {"sort": "good"}, BAD), "names sort; the factors of the cells are kind"),
        (above("top1", GOOD, BAD), "compares 'top1'; these cells have few-shot %"),
    ],
)
def test_a_claim_about_unknown_factors_or_values_is_refused(compared, said):
    for claim in (
        Claim("mine", "", "", (compared,)),
        Claim("mine", "", "", (above("few-shot %", GOOD, BAD),), (compared,)),
    ):
        with pytest.raises(ValueError, match=f"the claim 'mine' {said}"):
            check_claims((claim,), CELLS)


def test_a_claim_that_this_grid_cannot_decide_gets_a_line():
    claim = Claim("mine", "", "", (above("few-shot %", GOOD, {"kind": "best"}),))
    assert check_claims((claim,), CELLS) == ["cannot be decided here: mine, because no cell has kind best"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Claim("mine", "", "", ()), "no comparisons"),
        (lambda: Comparison((), "x", "above", 0.0), "no terms"),
        (lambda: Comparison((Term(1.0, ()),), "x", "below", 0.0), "expects 'below'; give one of above, within"),
        (lambda: Comparison((Term(1.0, ()),), "x", "above", math.nan), "threshold is nan"),
        (lambda: alike("x", GOOD, BAD, within=0.0), "positive threshold"),
        (lambda: Comparison((Term(1.0, ()), Term(2.0, ())), "x", "above", 0.0), "must add up to 0"),
        (lambda: above("x", {"layers": 2}, BAD), "both as text"),
        (lambda: Term(math.inf, ()), "finite"),
        (lambda: replace(CELLS[0], levels={"layers": 2}), "both as text"),
    ],
)
def test_claims_and_cells_that_mean_nothing_are_refused_at_birth(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_gaining_more_is_a_difference_of_differences():
    made = [
        Row("own", "tiny", {"model": m, "data": d}, 0, "x", {"x": v})
        for (m, d), v in {("L", "big"): 90.0, ("L", "small"): 50.0, ("B", "big"): 80.0, ("B", "small"): 60.0}.items()
    ]
    gain = gains_more("x", {"model": "L"}, {"model": "B"}, {"data": "big"}, {"data": "small"})
    assert by_seed(gain, made, grid(made)) == {0: 20.0}


def test_a_claim_of_several_comparisons_needs_all_of_them():
    values = rows({"good": [80, 81, 82], "bad": [70, 71.1, 71.9]})
    sure, wrong = above("top-1 %", GOOD, BAD), above("top-1 %", BAD, GOOD)
    missing = above("other", GOOD, BAD)
    answers = {
        (sure,): "confirmed", (sure, wrong): "not confirmed", (sure, missing): "not run yet",
    }  # fmt: skip
    for comparisons, answer in answers.items():
        assert verdict(Claim("c", "says", "where", comparisons), values, grid(values)).answer == answer


def test_what_stands_beside_a_claim_decides_nothing():
    values = rows({"good": [80, 81, 82], "bad": [70, 71.1, 71.9]})
    sure, wrong = above("top-1 %", GOOD, BAD), above("top-1 %", BAD, GOOD)
    for beside, is_everywhere in (((), False), ((sure,), True), ((sure, wrong), False)):
        found = verdict(Claim("c", "says", "where", (sure,), beside, "so it is"), values, grid(values))
        assert found.answer == "confirmed"
        assert found.is_everywhere == is_everywhere


def test_comparisons_of_one_claim_have_names_of_their_own():
    for claim in (claim for study in STUDIES.values() for claim in study.claims_at(TINY)):
        names = [one.about for one in (*claim.comparisons, *claim.beside)]
        assert len(set(names)) == len(names), claim.name
        assert len(claim.comparisons) == 1 or all(names), claim.name


def test_comparisons_read_as_sentences():
    assert str(above("top-1 %", GOOD, BAD, by=1)) == "top-1 %: (kind good) - (kind bad) above 1"
    assert str(alike("top-1 %", GOOD, BAD, within=2)) == "top-1 %: (kind good) - (kind bad) within ±2"


@pytest.mark.parametrize("scale", OFFERED)
@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_can_be_decided_by_the_cells_of_every_scale(name, scale):
    """A claim over levels that no cell has, or over unlike groups of cells, would never be decided."""
    study, size = STUDIES[name], find_scale(scale)
    assert study.claims_at(size)
    assert check_claims(study.claims_at(size), check_grid(name, study.cells(size))) == []


def test_there_are_at_least_twelve_claims_with_sources():
    claims = [claim for study in STUDIES.values() for claim in study.claims_at(TINY)]
    assert len(claims) >= 12
    assert len({claim.name for claim in claims}) == len(claims)
    assert all(claim.source and claim.says for claim in claims)
