"""Mutants of the numeric core, each against the fast tests of its folder: what nobody notices, no test holds.

    python tests/run_mutants.py --mutants 200 --seconds 3600 --jobs 2 > evidence/mutants.txt

A mutant meets the tests that call its function, the quickest first; where it is in no function, all of its folder. It
is made in a copy of the project, and each run is a fork of one process that has imported torch but not vitlab, so that
it costs the seconds of its tests. The sample is a function of the seed. Survivors without a reason in
tests/equivalent_mutants.json make the exit code 1.
"""

import argparse
import ast
import builtins
import collections
import contextlib
import importlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from mutants import Mutant, mutants_of

ROOT = Path(__file__).parent.parent
MODULES = {  # module of src/vitlab: where its tests are
    "spec/recipe.py": ("tests/spec/test_recipe.py", "tests/paper"),
    **{f"train/{name}.py": ("tests/train",) for name in ("objectives", "optimizers", "mixing")},
    **{f"data/transforms/{name}.py": ("tests/data",) for name in ("augmentation", "randaugment", "resizing")},
    "data/transforms/tensorflow_operations.py": ("tests/data",),
    "data/loading/order.py": ("tests/data",),
    **{f"metrics/{name}.py": ("tests/metrics",) for name in ("ridge", "scores")},
    **{f"models/{name}.py": ("tests/models",) for name in ("embedding", "transformer")},
    **{f"inspection/{name}.py": ("tests/inspection",) for name in ("rollout", "attention")},
}
REASONS = Path(__file__).with_name("equivalent_mutants.json")
Callers = dict[tuple[str, int], list[str]]  # module and line of a function -> tests that call it, the quickest first
SLACK = 60  # seconds a mutant may take beside four times those of its tests


@dataclass
class Trial:
    """A mutant and what became of it."""

    module: str
    mutant: Mutant
    outcome: str = "not run"  # caught, survived, timed out
    slot: Path | None = None
    ends: float = 0.0
    source: str = field(default="", repr=False)

    def lines(self) -> tuple[str, str]:
        """The line before and after, without its indentation."""
        return self.mutant.lines(self.source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="at most so many; 0 is all")
    parser.add_argument("--seconds", type=float, default=3600, help="no mutant is begun later than this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=list(MODULES))
    asked = parser.parse_args()
    begin, commit = time.monotonic(), described_commit()
    every = sampled(asked.modules, 0, asked.seed)
    trials = every[: asked.mutants] if asked.mutants else every
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        slots = [copied(Path(folder) / str(number)) for number in range(asked.jobs)]
        warm(slots[0])
        callers, seconds = tests_by_function(slots[0], asked.modules)
        for slot in slots[1:]:
            shutil.copytree(slots[0], slot, dirs_exist_ok=True)
        run_all(trials, slots, callers, seconds, until=begin + asked.seconds)
    possible = collections.Counter(trial.module for trial in every)
    survivors = report(trials, asked, possible, f"commit {commit}", time.monotonic() - begin)
    return 1 if survivors else 0


def sampled(modules: list[str], most: int, seed: int) -> list[Trial]:
    """Mutants of all modules in turn, so that each has its share however small it is."""
    shuffled = []
    for module in modules:
        source = (ROOT / "src" / "vitlab" / module).read_text()
        own = [Trial(module, mutant, source=source) for mutant in mutants_of(source)]
        random.Random(f"{seed}/{module}").shuffle(own)
        shuffled.append(own)
    longest = max(map(len, shuffled))
    in_turn = [own[place] for place in range(longest) for own in shuffled if place < len(own)]
    return in_turn[:most] if most else in_turn


def copied(folder: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\n")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def warm(slot: Path) -> None:
    """Import what is slow to import and is not ours; a fork has it at once."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(slot / "src")}
    sys.path.insert(0, str(slot / "tests"))
    for name in ("torch", "scipy.ndimage", "sklearn.linear_model", "hypothesis", "pytest", "peers", "timm.data"):
        with contextlib.suppress(ImportError):  # peers are timm, torchvision and transformers, where installed
            importlib.import_module(name)
    sys.path.pop(0)
    assert "vitlab" not in sys.modules


def tests_by_function(slot: Path, modules: list[str]) -> tuple[Callers, dict[str, float]]:
    """Run all tests unchanged, and note which functions of the modules each calls, and its seconds.

    Those that fail are left out and named: they would catch everything.
    """
    notes = slot / "notes.json"
    folders = sorted({folder for module in modules for folder in MODULES[module]})
    for module in modules:
        write(slot, module, noted((ROOT / "src" / "vitlab" / module).read_text(), module))
    finished(forked(lambda: noting(folders, notes), slot, is_heard=True), allowed=(0, 1))
    for module in modules:
        write(slot, module, (ROOT / "src" / "vitlab" / module).read_text())
    found = json.loads(notes.read_text())
    seconds = {test: spent for test, spent in found["seconds"].items() if test not in found["failed"]}
    for test in found["failed"]:
        say(f"left out, because it fails without any mutant: {test}")
    finished(forked(lambda: met(["--collect-only", "-qq", *seconds]), slot))  # every test is found by its name
    callers: Callers = collections.defaultdict(list)
    for test in sorted(seconds, key=seconds.get):
        for module, line in found["calls"].get(test, ()):
            callers[module, line].append(test)
    return callers, seconds


def noted(source: str, module: str) -> str:
    """The source with every function telling `NOTE`, where there is one, that it was called."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            call = f"__import__('builtins').__dict__.get('NOTE', id)(({module!r}, {node.lineno}))"
            node.body.insert(0, ast.parse(call).body[0])
    return ast.unparse(tree)


def finished(process: int, allowed: tuple[int, ...] = (0,)) -> None:
    _, status = os.waitpid(process, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in allowed:
        raise SystemExit(f"the tests cannot be run even without any mutant: pytest gave {code}")


def noting(folders: list[str], notes: Path) -> int:
    import pytest

    calls: dict[str, set[tuple[str, int]]] = collections.defaultdict(set)
    seconds: dict[str, float] = collections.Counter()
    failed: set[str] = set()

    class Notes:
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            vars(builtins)["NOTE"] = calls[nodeid].add

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            seconds[report.nodeid] += report.duration
            failed.update([report.nodeid] if report.failed else [])

    code = pytest.main([*OPTIONS, *folders], plugins=[Notes()])
    listed = {test: sorted(own) for test, own in calls.items()}
    notes.write_text(json.dumps({"calls": listed, "seconds": seconds, "failed": sorted(failed)}))
    return int(code)


OPTIONS = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]


def run_all(
    trials: list[Trial], slots: list[Path], callers: Callers, seconds: dict[str, float], *, until: float
) -> None:
    """At most one mutant in each slot at a time."""
    waiting, running, free = list(reversed(trials)), {}, list(slots)
    while running or (waiting and time.monotonic() < until):
        while waiting and free and time.monotonic() < until:
            trial, trial_slot = waiting.pop(), free.pop()
            tests = tests_of(trial, callers, seconds)
            trial.slot, trial.ends = trial_slot, time.monotonic() + 4 * sum(map(seconds.get, tests)) + SLACK
            write(trial_slot, trial.module, trial.mutant.applied(trial.source))
            running[forked(lambda chosen=tests: met(chosen), trial_slot)] = trial
        process, trial = ended(running)
        write(trial.slot, trial.module, trial.source)
        del running[process]
        free.append(trial.slot)
        say(f"{trial.outcome} {described(trial)}", sys.stderr)


def tests_of(trial: Trial, callers: Callers, seconds: dict[str, float]) -> list[str]:
    """Those that call its function; where it is in none, all of its folders, callers of the module first."""
    own = [test for test in sorted(seconds, key=seconds.get) if test.startswith(MODULES[trial.module])]
    function = function_at(trial.source, trial.mutant.line)
    if function is not None:
        return [test for test in callers[trial.module, function] if test in set(own)] or own
    near = {test for (module, _), tests in callers.items() if module == trial.module for test in tests}
    return sorted(own, key=lambda test: test not in near)


def function_at(source: str, line: int) -> int | None:
    """The first line of the innermost function whose body has the line."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    around = [node.lineno for node in functions if node.body[0].lineno <= line <= node.end_lineno]
    return max(around, default=None)


def write(slot: Path, module: str, source: str) -> None:
    """Put a module into its slot; the compiled one would be taken for it within the same second."""
    path = slot / "src" / "vitlab" / module
    path.write_text(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def met(tests: list[str]) -> int:
    import pytest

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return int(pytest.main([*OPTIONS, "-x", *tests]))


def forked(work: Callable[[], int], slot: Path, *, is_heard: bool = False) -> int:
    """The id of a new process group that does the work with the slot's vitlab."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        out = os.open(slot / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(2 if is_heard else out, stream)
        os.chdir(slot)
        os.environ |= {"PYTHONPATH": str(slot / "src"), "TMPDIR": str(slot.parent)}
        sys.path.insert(0, str(slot / "src"))
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(running: dict[int, Trial]) -> tuple[int, Trial]:
    """Wait until one has ended or its time is over, and note what became of it."""
    while True:
        for process, trial in running.items():
            code = exit_code(process)
            if code is None and time.monotonic() > trial.ends:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                trial.outcome = "timed out"
                return process, trial
            if code is not None:
                trial.outcome = "caught" if code else "survived"
                return process, trial
        time.sleep(0.02)


def exit_code(process: int) -> int | None:
    """None while it runs."""
    done, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def described(trial: Trial) -> str:
    return f"{trial.module}:{trial.mutant.line}  [{trial.mutant.old} -> {trial.mutant.new}]  {trial.lines()[0]}"


def described_commit() -> str:
    """Of the project that is mutated; with a + where it was changed since."""
    command = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def report(
    trials: list[Trial], asked: argparse.Namespace, possible: dict[str, int], commit: str, took: float
) -> list[Trial]:
    """Print the table and the survivors; return those without a reason."""
    reasons = json.loads(REASONS.read_text())
    run = [trial for trial in trials if trial.outcome != "not run"]
    modules = "" if asked.modules == list(MODULES) else f" --modules {' '.join(asked.modules)}"
    limits = f"--mutants {asked.mutants} --seconds {asked.seconds:g}"
    say(f"python tests/run_mutants.py {limits} --seed {asked.seed}{modules}")
    say(f"{commit}, Python {platform.python_version()}, {asked.jobs} at a time, {took:,.0f} s")
    say(f"{len(run):,} of {len(trials):,} sampled mutants were run\n")
    say(f"{'module':32}{'possible':>9}{'made':>7}{'caught':>8}{'timed out':>11}{'survived':>10}{'with reason':>13}")
    unexplained = [t for t in run if t.outcome == "survived" and not reason_of(t, reasons)]
    for module in [*asked.modules, "all"]:
        own = [trial for trial in run if module in (trial.module, "all")]
        sizes = [size for name, size in possible.items() if module in (name, "all")]
        count = collections.Counter(trial.outcome for trial in own)
        explained = sum(trial.outcome == "survived" and trial not in unexplained for trial in own)
        cells = (sum(sizes), len(own), count["caught"], count["timed out"], count["survived"], explained)
        say(f"{module:32}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, (9, 7, 8, 11, 10, 13), strict=True)))
    for trial in (t for t in run if t.outcome == "survived"):
        say(f"\nsurvived {described(trial)}\n    {reason_of(trial, reasons) or 'NO REASON: it needs a test'}")
    return unexplained


def say(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def reason_of(trial: Trial, reasons: dict[str, dict[str, str]]) -> str:
    return reasons.get(trial.module, {}).get(trial.lines()[1], "")


if __name__ == "__main__":
    sys.exit(main())
