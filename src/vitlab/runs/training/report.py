"""The report of a finished run: learning curves, confusions, classes, the worst mistakes, attention rollout."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from vitlab.counting import count_spec
from vitlab.data.images.pictures import Named
from vitlab.data.images.refusals import BadImage
from vitlab.data.source import Source, decode
from vitlab.data.transforms.evaluation import evaluation_pixels
from vitlab.drawing.canvas import require_matplotlib
from vitlab.drawing.charts import draw_confusion, draw_curves, smoothed, thinned
from vitlab.drawing.page import Card, Section, page
from vitlab.files.strict_json import from_json, read_json
from vitlab.inspection.captions import ROLLOUT
from vitlab.inspection.figures import draw_scale
from vitlab.models.build import Model
from vitlab.models.vit import ViT
from vitlab.paper.models import name_of
from vitlab.report.answers import Answers, ClassResult, Mistake, finite_numbers
from vitlab.run_dir import MODEL, REPORT, RunDir, RunSpec, answers_file, weights_name
from vitlab.runs.measure.inputs import class_names
from vitlab.runs.measure.inspection import examine
from vitlab.runs.progress import describe, say
from vitlab.runs.training.data import RunData
from vitlab.spec.recipe import VALIDATION
from vitlab.weights.load import load_model

DRAWN, LISTED = 20, 50  # classes in the picture of confusions and in the table
LOOKED_AT = 4  # pictures whose attention is shown


def tell_report(run: RunDir, spec: RunSpec, data: RunData, console: Console) -> None:
    """Write the report of a finished run and print where it is, if the execution asks for one.

    An error is printed in one line: the run itself has succeeded. A run of masked patches has no labels to report on.
    """
    if not spec.execution.report or spec.recipe.masking is not None:
        return
    try:
        require_matplotlib()
        write_report(run, spec, data)
    except ModuleNotFoundError as error:
        say(console, f"no report was written: {error}")
    except Exception as error:  # a report is no reason to fail after hours of training
        say(console, f"the report could not be written ({type(error).__name__}: {error!s:.200}); the run is complete")
    else:
        say(console, f"the report is in {run.path / REPORT}: open it in a browser")


def write_report(run: RunDir, spec: RunSpec, data: RunData) -> Path:
    """Write RUN/report.html: a single file whose size does not grow with the data."""
    sets = {"test": data.test, VALIDATION: data.validation}
    found = {name: answers for name in sets if (answers := read_answers(run, name)) is not None}
    name, answers = next(iter(found.items()), ("", None))  # of the test data if there is any
    sections, source = _curves(run), sets.get(name)
    if answers is None or source is None:
        missing = "This run had no images to validate or test on; give --held-out, --validation or --test."
        sections.insert(0, Section("Results", missing, wide=True))
    else:
        model = load_model(run.path / MODEL)
        names = class_names(model)[0]
        sections = [_results(found), *sections, *_classes(name, answers, names)]
        sections += _pictures(model, name, answers, source, names)
    title = f"{'Fine-tuning' if spec.kind == 'finetune' else 'Pre-training'}: {run.path.name}"
    run.write_bytes(REPORT, page(title, _about(run, spec, data), sections).encode())
    return run.path / REPORT


def has_answers(run: RunDir, name: str, numbers: Mapping[str, float]) -> bool:
    """Whether the answers on disk belong to these numbers, not to other weights."""
    kept = read_answers(run, name)
    return kept is not None and kept.numbers == finite_numbers(numbers)


def read_answers(run: RunDir, name: str) -> Answers | None:
    """The answers of the last evaluation of a set, if there was one."""
    path = run.path / answers_file(name)
    return from_json(Answers, read_json(path), path.name) if path.exists() else None


# -- Sections --------------------------------------------------------------------------------------


def _about(run: RunDir, spec: RunSpec, data: RunData) -> str:
    model, recipe = spec.model, spec.recipe
    height, width = model.image
    start = f", from {weights_name(Path(spec.start))}" if spec.start else ", from fresh weights"
    steps = max(run.history("step", "loss"), default=0)
    return (
        f"{name_of(model)} ({count_spec(model).parameters:,} parameters) at {height}x{width} pixels{start}, trained on "
        f"{len(data.train):,} images of {len(data.card.class_names):,} classes ({spec.data}) with the recipe "
        f"{recipe.name}: {steps:,} steps of {recipe.batch:,} images, seed {spec.seed}."
    )


def _results(found: Mapping[str, Answers]) -> Section:
    rows = [("images", "result")]
    for name, answers in found.items():
        numbers = {key: int(value) if value.is_integer() else value for key, value in answers.numbers.items()}
        rows.append((name, describe(numbers)))
    return Section("Results", "Every image was scored once, with the weights that were kept.", table=rows, wide=True)


def _curves(run: RunDir) -> list[Section]:
    loss = run.history("step", "loss")
    if not loss:
        return []
    training, validation = _finite(loss), _finite(run.history(VALIDATION, "loss"))
    curves = {"training": thinned(smoothed(training, window=max(len(training) // 50, 1)))}
    text = "The training loss is averaged over neighbouring steps."
    if validation:
        curves["validation"] = thinned(validation)
        text += " It includes what the recipe adds (augmentation, smoothing, dropout), so the two need not meet."
    sections = [Section("Loss", text, figures=[("loss by step", draw_curves(curves, x="step", y="loss").svg)])]
    for value, label in (("top1", "accuracy"), ("map", "mean average precision")):
        found = {event["step"]: 100 * float(event[value]) for event in run.events(VALIDATION) if value in event}
        if points := _finite(found):
            drawn = draw_curves({"validation": thinned(points)}, x="step", y=f"{label} (%)")
            best = max(points, key=lambda step: points[step])
            said = f"{label.capitalize()} of the validation images; the best is {points[best]:.1f} % at step {best:,}."
            sections.append(Section("Validation", said, figures=[(f"{label} by step", drawn.svg)]))
    return sections


def _finite(points: Mapping[int, float]) -> dict[int, float]:
    return {step: value for step, value in points.items() if np.isfinite(value)}


def _classes(name: str, answers: Answers, names: Sequence[str]) -> list[Section]:
    """The confusion matrix and the table of classes, the worst first."""
    sections = []
    cells = Counter({(label, answer): number for label, answer, number in answers.confusion})
    if cells:
        chosen = _most_confused(cells)
        counts = np.array([[cells[label, answer] for answer in chosen] for label in chosen])
        text = f"Rows are the classes of the {name} images, columns the predictions."
        occurring = {label for pair in cells for label in pair}
        if len(chosen) < len(occurring):
            text += f" The {len(chosen)} classes that were confused most often are shown, of {len(occurring)}."
        drawn = draw_confusion(counts, [names[label] for label in chosen])
        sections.append(Section("Confusion matrix", text, [("confusion matrix", drawn.svg)]))
    ordered = sorted(answers.classes, key=lambda one: (_share(one), one.number))
    text = f"The classes of the {name} images, the worst first."
    if len(ordered) > LISTED:
        text += f" {LISTED} of {len(ordered):,} are listed."
    is_multi_label = any(one.right is None for one in ordered)
    head = ("class", "images", *(("average precision", "F1") if is_multi_label else ("right", "taken for most often")))
    rows = [head, *(_class_row(one, cells, names) for one in ordered[:LISTED])]
    return [*sections, Section("Classes", text, table=rows)]


def _share(result: ClassResult) -> float:
    if result.right is None:
        return result.average_precision or 0.0
    return result.right / max(result.images, 1)


def _class_row(one: ClassResult, cells: Counter[tuple[int, int]], names: Sequence[str]) -> tuple[str, ...]:
    first = (names[one.number], f"{one.images:,}")
    if one.right is None:
        return (*first, _percent(one.average_precision), _percent(one.f1))
    wrong = Counter({answer: n for (label, answer), n in cells.items() if label == one.number != answer})
    taken = ", ".join(f"{names[answer]} ({number:,})" for answer, number in wrong.most_common(2))
    return (*first, f"{one.right:,} ({one.right / max(one.images, 1):.1%})", taken)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _most_confused(cells: Counter[tuple[int, int]]) -> list[int]:
    """At most DRAWN classes, those with the most wrong predictions from or to them, by number."""
    weight: Counter[int] = Counter()
    for (label, answer), number in cells.items():
        for one in (label, answer):
            weight[one] += number if label != answer else 0
    return sorted(sorted(weight, key=lambda one: (-weight[one], one))[:DRAWN])


def _pictures(model: Model, name: str, answers: Answers, source: Source, names: Sequence[str]) -> list[Section]:
    """The worst mistakes, and the attention rollout of a few images."""
    mistakes = [(mistake, image) for mistake in answers.mistakes if (image := _image(source, mistake.number))]
    sections = []
    if mistakes:
        text = f"The {name} images whose true class got the lowest probability, as the model sees them."
        photos = [_photo(model, mistake, image, names) for mistake, image in mistakes]
        sections.append(Section("Worst mistakes", text, cards=photos, wide=True))
    elif not any(one.right is None for one in answers.classes):
        sections.append(Section("Worst mistakes", "None: every prediction was correct.", wide=True))
    looked_at = [Named(mistake.id, image) for mistake, image in mistakes[: LOOKED_AT // 2]]
    for number in np.linspace(0, len(source) - 1, LOOKED_AT, dtype=int).tolist():
        if len(looked_at) < LOOKED_AT and source.id(number) not in {one.name for one in looked_at}:
            looked_at += [Named(source.id(number), image) for image in [_image(source, number)] if image]
    if isinstance(model, ViT) and looked_at:
        found = examine(model, looked_at, maps=0)
        scale = [("colours of the rollout, from least to most", draw_scale().svg)]
        sections.append(Section("Attention rollout", ROLLOUT, scale, cards=found.cards, wide=True))
    return sections


def _image(source: Source, number: int) -> Image.Image | None:
    """The image of a sample; None if it has become unreadable."""
    try:
        return decode(source.item(number), source.max_pixels).image
    except BadImage:
        return None


def _photo(model: Model, mistake: Mistake, image: Image.Image, names: Sequence[str]) -> Card:
    pixels = evaluation_pixels(image, model.spec.image, model.spec.conventions.preprocessing)
    said = f"is {names[mistake.label]}, taken for {names[mistake.answer]} ({mistake.probability:.1%})"
    return Card(mistake.id, pixels.permute(1, 2, 0).contiguous().numpy(), said)
