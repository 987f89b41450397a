"""Few-shot, neighbours and probe against scikit-learn, torch's own optimizer and plain NumPy."""

from itertools import pairwise

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.neighbors
import torch

import vitlab
from vitlab.metrics.fewshot import FeatureSet, fewshot_sets, mean_rank_choice, shot_numbers
from vitlab.metrics.probe import linear_probe, nearest_neighbours, train_probe
from vitlab.metrics.ridge import BIAS, GRID, fit

LARGE = [l2 for l2 in GRID if l2 >= 1]


def clouds(samples, width, classes, seed=0, spread=2.0):
    """Gaussian clouds around a centre for each class; every class occurs."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.arange(samples) % classes)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + spread * draw.normal(size=(samples, width)) + 3).astype(np.float32), labels


def scikit_learn_logits(x, y, classes, tests, l2):
    """The whitening and the constant written out; Ridge solves the rest."""
    x, tests = x.astype(np.float64), tests.astype(np.float64)
    mean, deviation = x.mean(0), x.std(0) + 1e-5
    x, tests = (np.column_stack([(part - mean) / deviation, np.full(len(part), 100.0)]) for part in (x, tests))
    model = sklearn.linear_model.Ridge(alpha=l2, fit_intercept=False, solver="cholesky")
    return model.fit(x, 2 * np.eye(classes)[y] - 1).predict(tests)


@pytest.mark.parametrize(("samples", "width"), [(60, 12), (40, 100), (51, 50)])
def test_the_ridge_is_that_of_scikit_learn_for_every_l2(samples, width):
    x, y = clouds(samples, width, 5)
    tests, _ = clouds(30, width, 5, seed=1)
    ridge = fit(torch.from_numpy(x), torch.from_numpy(y), 5)
    for l2, logits in zip(LARGE, ridge.logits(torch.from_numpy(tests), LARGE), strict=True):
        expected = scikit_learn_logits(x, y, 5, tests, l2)
        assert np.abs(logits.numpy() - expected).max() / np.abs(expected).max() <= 1e-8
        by_weights = ridge.whitened(torch.from_numpy(tests)) @ ridge.weights(l2)
        assert np.abs(by_weights.numpy() - expected).max() / np.abs(expected).max() <= 1e-8


@pytest.mark.parametrize("shapes", [((0, 4), (0,)), ((3, 4), (2,)), ((3,), (3,)), ((3, 4, 5), (3,))])
def test_features_and_labels_that_do_not_pair_are_refused(shapes):
    with pytest.raises(ValueError, match="do not match"):
        fit(torch.ones(shapes[0]), torch.zeros(shapes[1], dtype=torch.int64), 2)


@pytest.mark.parametrize(("samples", "width"), [(80, 20), (20, 80), (33, 32)])
def test_primal_equals_dual(samples, width):
    x, y = (torch.from_numpy(part) for part in clouds(samples, width, 4))
    primal, dual = fit(x, y, 4, primal=True), fit(x, y, 4, primal=False)
    assert len(primal.values) == width + 1
    assert len(dual.values) == samples
    assert len(fit(x, y, 4).values) == min(width + 1, samples)
    for l2 in LARGE:
        a, b = primal.weights(l2), dual.weights(l2)
        assert (a - b).abs().max() <= 1e-8 * b.abs().max()
    a, b = primal.weights(GRID[0]), dual.weights(GRID[0])
    assert (a - b).abs().max() <= 1e-6 * b.abs().max()  # the conditioning at 2^-10: 3e-7 was seen


def test_the_smallest_l2_is_accurate_where_float32_is_not():
    x, y = (torch.from_numpy(part) for part in clouds(300, 64, 10))
    x[:, 32:] = x[:, :32] + 1e-3 * x[:, 32:]  # nearly dependent features, as those of a network are
    weights = fit(x, y, 10).weights(GRID[0])
    ridge = fit(x, y, 10)
    whitened = ridge.whitened(x)
    targets = 2 * torch.eye(10).double()[y] - 1
    residual = whitened.mT @ (targets - whitened @ weights) - GRID[0] * weights  # zero at the solution
    assert residual.abs().max() <= 1e-9 * (whitened.mT @ targets).abs().max()
    single = whitened.float()
    values, basis = torch.linalg.eigh(single.mT @ single)
    rough = basis @ ((basis.mT @ (single.mT @ targets.float())) / (values + GRID[0])[:, None])
    assert (rough - weights).abs().max() > 1e-2 * weights.abs().max()


def test_the_grid_is_the_paper_s_and_the_constant_feature_is_100():
    assert (len(GRID), GRID[0], GRID[-1]) == (30, 2.0**-10, 2.0**19)
    assert all(larger == 2 * l2 for l2, larger in pairwise(GRID))
    assert BIAS == 100.0
    x, y = (torch.from_numpy(part) for part in clouds(20, 6, 2))
    assert (fit(x, y, 2).whitened(x)[:, -1] == 100).all()


def test_a_feature_that_never_varies_does_no_harm():
    x, y = clouds(60, 8, 3)
    x[:, 2] = 7
    tests, truth = clouds(60, 8, 3, seed=1)
    tests[:, 2] = 7
    with_it = vitlab.fewshot(x, y, tests, truth, shots=None, l2=1.0)
    without = vitlab.fewshot(np.delete(x, 2, 1), y, np.delete(tests, 2, 1), truth, shots=None, l2=1.0)
    assert with_it.accuracy == without.accuracy


def big_vision_shots(labels, classes, shots, seed):
    """The rule of big_vision's few-shot evaluator: one generator permutes the samples of class after class."""
    generator = np.random.default_rng(seed)
    permuted = [generator.permutation(np.where(labels == number)[0]) for number in range(classes)]
    return sorted(sample for of_class in permuted for sample in of_class[:shots])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shots", [1, 5])
def test_a_seed_draws_the_shots_that_big_vision_draws(seed, shots):
    labels = np.random.default_rng(4).integers(0, 6, 200)
    assert shot_numbers(labels, shots, seed).tolist() == big_vision_shots(labels, 6, shots, seed)
    assert shot_numbers(labels, shots, seed, draw="by-class").tolist() != big_vision_shots(labels, 6, shots, seed)
    fewer = set(shot_numbers(labels, shots, seed).tolist())
    assert fewer < set(shot_numbers(labels, shots + 3, seed).tolist())


def test_shots_drawn_by_class_do_not_depend_on_the_other_classes():
    labels = np.random.default_rng(4).integers(0, 6, 200)
    own = np.flatnonzero(labels == 3)
    drawn = shot_numbers(labels, 5, 7, draw="by-class")
    assert drawn[labels[drawn] == 3].tolist() == sorted(np.random.default_rng(7).permutation(own)[:5])
    with pytest.raises(ValueError, match="draw 'scenic' is unknown; give 'big-vision' or 'by-class'"):
        shot_numbers(labels, 5, 7, draw="scenic")


def test_without_a_seed_the_first_of_every_class_are_taken():
    labels = np.array([1, 0, 1, 1, 0, 0])
    assert shot_numbers(labels, 2).tolist() == [0, 1, 2, 4]


def test_the_draw_reaches_the_accuracy():
    x, y = clouds(120, 4, 6, spread=4.0)
    tests, truth = clouds(200, 4, 6, seed=1, spread=4.0)
    for draw in ("big-vision", "by-class"):
        numbers = shot_numbers(y, 2, 5, draw=draw)
        expected = vitlab.fewshot(x[numbers], y[numbers], tests, truth, shots=None, l2=4.0)
        assert vitlab.fewshot(x, y, tests, truth, shots=2, seed=5, draw=draw, l2=4.0).accuracy == expected.accuracy


def test_fewshot_gives_the_accuracy_of_a_plain_computation():
    x, y = clouds(400, 10, 8, spread=1.5)
    tests, truth = clouds(120, 10, 8, seed=1, spread=1.5)
    result = vitlab.fewshot(x, y, tests, truth, shots=5)
    chosen = [i for i in range(400) if (y[:i] == y[i]).sum() < 5]
    for l2 in LARGE:
        predicted = scikit_learn_logits(x[chosen], y[chosen], 8, tests, l2).argmax(-1)
        assert result.by_l2[l2] == (predicted == truth).mean()
    assert result.accuracy == max(result.by_l2.values())
    assert (result.train, result.count, result.shots) == (40, 120, 5)
    assert "test accuracy over 1 set" in result.chosen_by


def test_class_numbers_may_have_gaps_and_chunks_change_nothing(monkeypatch):
    x, y = clouds(100, 6, 4)
    tests, truth = clouds(50, 6, 4, seed=2)
    plain = vitlab.fewshot(x, y, tests, truth, l2=4.0)
    monkeypatch.setattr("vitlab.metrics.fewshot.CHUNK", 7)
    assert vitlab.fewshot(x, y * 10 + 3, tests, truth * 10 + 3, l2=4.0).accuracy == plain.accuracy


def test_the_mean_rank_rule_is_argsort_of_argsort():
    draw = np.random.default_rng(0)
    table = draw.permutation(60).reshape(2, 30) / 60.0
    ranks = [[sum(other < own for other in row) for own in row] for row in table]  # no ties in this table
    best = max(range(30), key=lambda i: (ranks[0][i] + ranks[1][i], -i))
    assert mean_rank_choice(table.tolist()) == best
    assert mean_rank_choice([[0.1, 0.5, 0.5]]) == 2
    assert mean_rank_choice([[0.1, 0.2], [0.2, 0.1]]) == 0  # equal mean ranks: the first, as numpy's argmax in scenic


def test_several_sets_share_the_l2_of_the_best_mean_rank():
    sets = {}
    for name, spread in (("easy", 1.0), ("hard", 4.0)):
        sets[name] = FeatureSet(*clouds(200, 10, 5, seed=3, spread=spread), *clouds(99, 10, 5, seed=4, spread=spread))
    results = fewshot_sets(sets, 10)
    place = mean_rank_choice([list(result.by_l2.values()) for result in results.values()])
    assert {result.l2 for result in results.values()} == {GRID[place]}
    assert all(result.accuracy == result.by_l2[GRID[place]] for result in results.values())


def test_held_out_selection_never_looks_at_the_test_labels():
    x, y = clouds(200, 10, 5)
    tests, truth = clouds(80, 10, 5, seed=5)
    honest = vitlab.fewshot(x, y, tests, truth, shots=10, l2="held-out")
    permuted = vitlab.fewshot(x, y, tests, np.roll(truth, 1), shots=10, l2="held-out")
    assert honest.l2 == permuted.l2
    assert honest.chosen_by == "held-out shots"
    chosen = shot_numbers(y, 10)
    held = [i for i in chosen if (y[chosen[chosen > i]] == y[i]).sum() < 2]  # the last two of ten
    kept = [i for i in chosen if i not in held]
    scores = [(scikit_learn_logits(x[kept], y[kept], 5, x[held], l2).argmax(-1) == y[held]).mean() for l2 in GRID]
    assert honest.l2 == max(zip(scores, GRID, strict=True))[1]
    with pytest.raises(ValueError, match="needs at least two"):
        vitlab.fewshot(x, y, tests, truth, shots=1, l2="held-out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shots": 99}, "has 10 samples; 99 are asked for"),
        ({"shots": 0}, "at least 1"),
        ({"l2": -1.0}, "must be positive"),
        ({"test_y": [0, 1, 9]}, "test classes \\[9\\] do not occur"),
        ({"test_y": [0.0, 1.0, 1.0]}, "expected whole numbers"),
        ({"test_x": np.zeros((3, 5))}, "6 wide, test features 5"),
        ({"test_x": np.full((3, 6), np.nan)}, "NaN"),
        ({"train_y": [0, 1]}, "expected \\(n, D\\) and \\(n,\\)"),
        ({"shots": True}, "shots True must be a whole number of at least 1"),
        ({"shots": 2.5}, "shots 2.5 must be a whole number"),
        ({"shots": "5"}, "shots '5' must be a whole number"),
        ({"seed": 2.5}, "seed 2.5 must be a whole number"),
        ({"l2": np.inf}, "must be positive"),
        ({"train_x": np.ones((20, 6), complex)}, "train features have dtype torch.complex128; expected real numbers"),
        ({"test_x": np.full((3, 6), "a")}, "test features .* expected real numbers"),
        ({"train_x": np.ones((20, 0)), "test_x": np.ones((3, 0))}, "\\(20, 0\\)"),
        ({"test_y": ["0", "1", "0"]}, "train labels are whole numbers, test labels text"),
        ({"test_y": [None, 1, 0]}, "test labels have dtype object; expected whole numbers or text"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(change, message):
    x, y = clouds(20, 6, 2)
    given = {"train_x": x, "train_y": y, "test_x": x[:3], "test_y": y[:3]} | change
    with pytest.raises(ValueError, match=message):
        vitlab.fewshot(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": np.full((20, 6), np.nan)}, "train features contain NaN"),
        ({"test_x": np.full((3, 6), np.inf)}, "test features contain NaN or infinity"),
        ({"test_x": np.zeros((3, 5))}, "6 wide, test features 5"),
        ({"train_y": np.zeros(19, int)}, "expected \\(n, D\\) and \\(n,\\)"),
        ({"train_y": np.zeros(20)}, "expected whole numbers"),
        ({"test_y": [0, 1, 9]}, "test classes \\[9\\] do not occur"),
    ],
)
def test_neighbours_and_probe_refuse_what_few_shot_refuses(change, message):
    x, y = clouds(20, 6, 2)
    given = {"train_x": x, "train_y": y, "test_x": x[:3], "test_y": y[:3]} | change
    with pytest.raises(ValueError, match=message):
        linear_probe(**given, steps=1)
    if "test_y" not in change:
        given.pop("test_y")
        with pytest.raises(ValueError, match=message):
            nearest_neighbours(**given, k=1)


@pytest.mark.parametrize("named", [lambda y: y * 10**9 - 5, lambda y: np.array(["ape", "bee", "cat", "dog"])[y]])
def test_classes_are_any_numbers_or_names_for_all_three(named):
    x, y = clouds(100, 6, 4, spread=1.0)
    tests, truth = clouds(50, 6, 4, seed=2, spread=1.0)
    plain = vitlab.fewshot(x, y, tests, truth, l2=4.0)
    assert vitlab.fewshot(x, named(y), tests, named(truth), l2=4.0) == plain
    found = nearest_neighbours(x, named(y), tests, k=5)
    assert np.array_equal(found, named(nearest_neighbours(x, y, tests, k=5)))
    probes = [linear_probe(x, of(y), tests, of(truth), steps=20) for of in (named, np.asarray)]
    assert probes[0] == probes[1]


def test_one_sample_of_one_class_is_learnt_from():
    x = np.ones((1, 3))
    assert vitlab.fewshot(x, [7], x, [7], shots=1, l2=1.0).accuracy == 1.0
    assert vitlab.fewshot(x, ["ape"], x, ["ape"], shots=None, l2=1.0).accuracy == 1.0
    assert nearest_neighbours(x, [7], x, k=1).tolist() == [7]


def test_arrays_that_cannot_be_written_are_read_without_a_warning():
    x, y = clouds(100, 6, 4)
    for array in (x, y):
        array.flags.writeable = False
    assert vitlab.fewshot(x, y, x, y, l2=4.0).count == 100  # warnings are errors here
    assert len(nearest_neighbours(x, y, x, k=5)) == 100
    assert linear_probe(x, y, x, y, steps=2).count == 100


@pytest.mark.parametrize("k", [1, 5, 20])
def test_neighbours_vote_as_scikit_learn_s_do(k, monkeypatch):
    monkeypatch.setattr("vitlab.metrics.probe.CHUNK", 16)
    x, y = clouds(150, 8, 6)
    tests, _ = clouds(70, 8, 6, seed=1)
    peer = sklearn.neighbors.KNeighborsClassifier(k, metric="cosine").fit(x.astype(np.float64), y)
    assert nearest_neighbours(x, y, tests, k=k).tolist() == peer.predict(tests.astype(np.float64)).tolist()


def test_weighted_neighbours_are_a_plain_sum_of_exponentials():
    x, y = clouds(60, 5, 4)
    tests, _ = clouds(20, 5, 4, seed=1)
    unit, unit_tests = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, tests))
    expected = []
    for row in unit_tests:
        similarity = unit @ row
        votes = np.zeros(4)
        for place in np.argsort(-similarity)[:9]:
            votes[y[place]] += np.exp(similarity[place] / 0.07)
        expected.append(votes.argmax())
    assert nearest_neighbours(x, y, tests, k=9, temperature=0.07).tolist() == expected
    with pytest.raises(ValueError, match="outside 1"):
        nearest_neighbours(x, y, tests, k=61)


def test_each_rate_of_the_probe_is_what_torch_s_sgd_trains_alone():
    x, y = (torch.from_numpy(part) for part in clouds(90, 7, 3))
    x = x.double()
    rates = (0.01, 0.1, 1.0)
    probe = train_probe(x, y, 3, rates=rates, steps=25, batch=32, seed=4)
    whitened = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    for place, rate in enumerate(rates):
        layer = torch.nn.Linear(7, 3).double()
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimizer = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)
        generator = torch.Generator().manual_seed(4)
        order = torch.cat([torch.randperm(90, generator=generator)[:64] for _ in range(13)]).split(32)
        for step in range(25):
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + np.cos(np.pi * step / 25))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(layer(whitened[order[step]]), y[order[step]])
            loss.backward()
            optimizer.step()
        assert torch.allclose(probe.weight[place].mT, layer.weight, rtol=1e-9, atol=1e-12)
        assert torch.allclose(probe.bias[place, 0], layer.bias, rtol=1e-9, atol=1e-12)


def test_the_probe_learns_and_picks_its_rate_on_held_out_samples():
    x, y = clouds(300, 10, 4, spread=1.0)
    tests, truth = clouds(100, 10, 4, seed=1, spread=1.0)
    result = linear_probe(x, y, tests, truth, steps=60, batch=64)
    assert result.rate == max(result.held_out, key=result.held_out.get)
    assert (result.train, result.count) == (270, 100)
    assert result.accuracy > 0.8  # chance is 0.25


@pytest.mark.parametrize("rule", ["meanrank", None, True, "4"])
def test_a_rule_for_l2_that_does_not_exist_is_refused(rule):
    x, y = np.eye(6), np.arange(6) % 2
    with pytest.raises(ValueError, match="is not a rule; give 'mean-rank', 'held-out' or a positive number"):
        vitlab.fewshot(x, y, x, y, shots=1, l2=rule)


def test_any_kind_of_number_is_a_fixed_l2():
    x, y = np.eye(6), np.arange(6) % 2
    assert vitlab.fewshot(x, y, x, y, shots=1, l2=np.float32(4)).l2 == 4.0


@pytest.mark.parametrize(("seed", "draw"), [(None, "big-vision"), (3, "big-vision"), (3, "by-class")])
def test_a_bad_sample_changes_nothing_but_its_own_place_among_the_shots(seed, draw):
    labels, bad = np.repeat([0, 1, 2], 8), {1, 4, 13, 16, 17}
    expected, stream = [], np.random.default_rng(seed)
    for first in (0, 8, 16):
        order = np.arange(first, first + 8)
        if seed is not None:
            order = (np.random.default_rng(seed) if draw == "by-class" else stream).permutation(order)
        expected += [number for number in order if number not in bad][:3]
    is_usable = ~np.isin(np.arange(24), list(bad))
    assert shot_numbers(labels, 3, seed, is_usable, draw).tolist() == sorted(expected)
    assert shot_numbers(labels, None, seed, is_usable).tolist() == sorted(set(range(24)) - bad)
