"""Measure speed and memory, and compare measurements: `python -m bench run | render | compare | list`."""

import argparse
import subprocess
import sys
from pathlib import Path

from bench import libraries, machine, results, suites
from bench.runner import run_case

QUICK_ROUNDS = 2


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.action == "list":
        width = max(map(len, suites.SUITES))
        for name in suites.SUITES:
            print(f"{name:{width}}  {suites.open_suite(name).__doc__.splitlines()[0]}")
        return 0
    if given.action == "compare":
        try:
            first, second = results.load_all(given.first), results.load_all(given.second)
            found = results.compare(first, second)
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        print("\n".join([*results.conditions(first, second), *results.comparison(found)]))
        return 0
    if given.action == "render":
        try:
            print("written:", *results.render(given.folder))
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        return 0
    names = given.suites or list(suites.SUITES)
    if unknown := [name for name in names if name not in suites.SUITES]:
        parser.error(f"no suite is named {', '.join(unknown)}; there are {', '.join(suites.SUITES)}")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {given.out} cannot be a folder: {error.strerror}")
    if len(names) == 1:
        return run_suite(names[0], given.rounds, given.quick, given.out)
    return run_apart(names, given.rounds, given.quick, given.out)


def run_suite(name: str, rounds: int | None, is_quick: bool, out: Path) -> int:
    """Run the cases of a suite and write what they found after each one."""
    suite = suites.open_suite(name)
    rounds = rounds or (QUICK_ROUNDS if is_quick else suite.ROUNDS)
    command = f"python -m bench run {name} --rounds {rounds}{' --quick' if is_quick else ''}"
    about = " ".join(suite.__doc__.split())
    where, found = machine.facts(), []
    for case in suite.cases(is_quick):
        print(f"{name}: {case.title}", flush=True)
        found.append(run_case(case, rounds))
        for line in results.table(results.headings(found[-1]), results.case_rows(found[-1])):
            print(line, flush=True)
        paths = results.save(results.SuiteResult(name, about, command, rounds, where, tuple(found)), out)
    if not found:
        print(f"{name}: skipped, because {libraries.REFERENCE} does not name the folder with weights and photographs")
        return 0
    print("written:", *paths, flush=True)
    return 0


def run_apart(names: list[str], rounds: int | None, is_quick: bool, out: Path) -> int:
    """Run every suite in a process of its own, so that none inherits another's threads and memory."""
    options = [*(["--rounds", str(rounds)] if rounds else []), *(["--quick"] if is_quick else []), "--out", str(out)]
    failed = [
        name
        for name in names
        if subprocess.run([sys.executable, "-m", "bench", "run", name, *options], check=False).returncode
    ]
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


def _rounds(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of rounds, 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench", description="Measure speed and memory, and compare measurements.")
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="run suites and write SUITE.json and SUITE.md")
    run.add_argument("suites", nargs="*", metavar="SUITE", help="default: all, one after the other")
    run.add_argument("--rounds", type=_rounds, help="measurements of each contestant (default: the suite's)")
    run.add_argument("--quick", action="store_true", help="few rounds and small cases, to see that it runs")
    run.add_argument("--out", type=Path, default=results.RESULTS, help="folder to write to (default: bench/results)")
    render = actions.add_parser("render", help="write every SUITE.md again from its SUITE.json, also in subfolders")
    render.add_argument("folder", type=Path, nargs="?", default=results.RESULTS, help="default: bench/results")
    compare = actions.add_parser("compare", help="compare two results, or two folders of results")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    actions.add_parser("list", help="name the suites")
    return parser


if __name__ == "__main__":
    sys.exit(main())
