"""A command is flags, one call into the library, and printing: what the command line can do, Python can do in one call.

Walks the syntax tree of every command. `command_line.py`, `flags.py`, `terminal.py` and `recipe_fields.py` are tools of
the commands: they convert text to values and print, and are the only modules here that may do more.
"""

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path

import pytest

import vitlab
from vitlab.cli import COMMANDS
from vitlab.commands import data, evaluation, exporting, looking, serving, sweeping, training
from vitlab.commands.data import DATA_COMMANDS
from vitlab.runs.sweep.sweep import sweep
from vitlab.runs.sweep.transfer import transfer
from vitlab.runs.training import start

PACKAGE = Path(vitlab.__file__).parent
TOOLS = {"command_line.py", "flags.py", "terminal.py", "recipe_fields.py", "__init__.py"}
MODULES = sorted({PACKAGE / "cli.py", *(PACKAGE / "commands").glob("*.py")} - {PACKAGE / "commands" / t for t in TOOLS})
FUNCTIONS = {function.__name__ for function in (*COMMANDS.values(), *DATA_COMMANDS.values())}
LIBRARIES = {"collections.abc", "dataclasses", "pathlib", "rich", "sys", "typing", "tyro", "vitlab"}  # at the top
OWN = ("vitlab.commands", "vitlab.errors")  # whose functions a command may call besides
PRINTING = {"print", "complain", "print_json", "write", "add_row", "add_column"}
SHOWING = ("_print", "_show", "_tell")  # how the names of a module's own functions that print begin
FILES = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "rename", "touch"}
FILES |= {"exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "stat", "resolve"}
STATEMENTS = {
    ast.With: "a with block",
    ast.Try: "a try block",
    ast.Raise: "a raise",
    ast.While: "a while loop",
    ast.FunctionDef: "a nested function",
    ast.Lambda: "a lambda",
}


def violations(file: Path, *, commands: set[str]) -> dict[str, list[str]]:
    """What each function of a module does beyond flags, one call and printing."""
    tree = ast.parse(file.read_text())
    is_cli = file.name == "cli.py"
    found = {} if is_cli else {"the top": _strange_imports(tree.body)}
    library = _from_library(tree.body)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (not is_cli or node.name in commands):
            found[node.name] = _in_function(node, library, calls_allowed=1 if node.name in commands else 0)
        if isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found[node.name] = [f"a class with methods: {', '.join(methods)}"] if methods else []
    return {f"{file.stem}.{name}": said for name, said in found.items() if said}


def _strange_imports(nodes: Iterable[ast.AST]) -> list[str]:
    said = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            strange = [module for module in modules if {module, module.split(".")[0]}.isdisjoint(LIBRARIES)]
            said += [f"line {node.lineno}: imports {module}" for module in strange]
    return said


def _from_library(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are imported from the library, as they are called here."""
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("vitlab") and node.module != "vitlab"]
    return {
        alias.asname or alias.name for node in ours if not (node.module or "").startswith(OWN) for alias in node.names
    }


def _in_function(function: ast.FunctionDef, library: set[str], *, calls_allowed: int) -> list[str]:
    parts = [part for statement in function.body for part in ast.walk(statement)]
    said, calls = _strange_imports(parts), []
    library = library | _from_library(parts)
    for node in parts:
        line = f"line {getattr(node, 'lineno', 0)}"
        for kind, name in STATEMENTS.items():
            if isinstance(node, kind):
                said.append(f"{line}: {name}")
        if isinstance(node, ast.For) and not _only_prints(node):
            said.append(f"{line}: a loop that does more than print")
        if isinstance(node, ast.Call):
            name = _name(node)
            if name in FILES:
                said.append(f"{line}: touches files ({name})")
            is_library = isinstance(node.func, ast.Name) and name in library
            is_public = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "vitlab"
            if (is_library or is_public) and name[:1].isupper():
                said += [] if name.endswith("Options") else [f"{line}: constructs {name}"]
            elif is_library or is_public:
                calls.append(node)
    if (number := _most_calls(function.body, calls)) > calls_allowed:
        named = ", ".join(f"{_name(call)} (line {call.lineno})" for call in calls)
        said.append(f"calls the library {number} times, {calls_allowed} allowed: {named}")
    return said


def _most_calls(body: list[ast.stmt], calls: list[ast.Call]) -> int:
    """The largest number of `calls` on one way through statements: of an if, one branch is taken."""
    if not body:
        return 0
    first, rest = body[0], body[1:]
    if not isinstance(first, ast.If):
        return sum(part in calls for part in ast.walk(first)) + _most_calls(rest, calls)
    ways = [
        branch if branch and isinstance(branch[-1], ast.Return) else branch + rest
        for branch in (first.body, first.orelse)
    ]
    return sum(part in calls for part in ast.walk(first.test)) + max(_most_calls(way, calls) for way in ways)


def _only_prints(loop: ast.For) -> bool:
    """Whether every statement of a loop is a call that prints or adds to what is printed."""
    for part in loop.body:
        name = _name(part.value) if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) else ""
        is_printing = name in PRINTING or name.startswith(SHOWING)
        if not (is_printing or (isinstance(part, ast.For) and _only_prints(part))):
            return False
    return True


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_a_command_is_flags_one_call_and_printing(file):
    assert violations(file, commands=FUNCTIONS) == {}


def test_logic_in_a_command_is_found(tmp_path):
    (tmp_path / "strange.py").write_text(
        "import torch\n"
        "def finetune(model, out):\n"
        "    from vitlab.runs import first, second, RunDir\n"
        "    made = []\n"
        "    def note(spec):\n"
        "        made.append(spec)\n"
        "    try:\n"
        "        for name in model:\n"
        "            note(first(name))\n"
        "        second(RunDir(out))\n"
        "    except KeyboardInterrupt:\n"
        "        if (out / 'run.json').is_file():\n"
        "            raise\n"
        "def _helper(path):\n"
        "    from vitlab.files.store import sha256\n"
        "    return sha256(path)\n"
    )
    found = violations(tmp_path / "strange.py", commands={"finetune"})
    assert found["strange.the top"] == ["line 1: imports torch"]
    assert sorted(found["strange.finetune"]) == [
        "calls the library 2 times, 1 allowed: second (line 10), first (line 9)",
        "line 10: constructs RunDir",
        "line 12: touches files (is_file)",
        "line 13: a raise",
        "line 5: a nested function",
        "line 7: a try block",
        "line 8: a loop that does more than print",
    ]
    assert found["strange._helper"] == ["calls the library 1 times, 0 allowed: sha256 (line 16)"]


def test_flags_and_printing_pass(tmp_path):
    (tmp_path / "plain.py").write_text(
        "from vitlab.commands.terminal import console, size_of\n"
        "def evaluate(model, image):\n"
        "    import vitlab\n"
        "    from vitlab.runs.measure.evaluate import EvaluateOptions\n"
        "    found = vitlab.evaluate(model, EvaluateOptions(size_of(image)))\n"
        "    for row in found.rows:\n"
        "        console().print(row)\n"
        "    return 0 if found.rows else 1\n"
    )
    assert violations(tmp_path / "plain.py", commands={"evaluate"}) == {}


@pytest.mark.parametrize(
    ("command", "function", "own"),
    [
        (training.pretrain, start.pretrain, set()),
        (training.finetune, start.finetune, set()),
        (sweeping.sweep, sweep, set()),
        (sweeping.transfer, transfer, set(sweeping.TRANSFER_SETS)),
        (sweeping.vtab, vitlab.vtab, set()),
        (data.data_check_vtab, vitlab.check_vtab, set()),
        (data.data_prepare_vtab, vitlab.prepare_vtab, set()),
        (evaluation.evaluate, vitlab.evaluate, set()),
        (evaluation.features, vitlab.features, set()),
        (evaluation.fewshot, vitlab.fewshot_table, set()),
        (evaluation.cost, vitlab.cost, set()),
        (exporting.export, vitlab.export, set()),
        (looking.predict, vitlab.predict, {"json", "loading"}),
        (looking.inspect, vitlab.inspect, {"loading"}),
        (looking.Loading, vitlab.inspect, set()),
        (serving.serve, vitlab.serve, {"bounds", "loading"}),
        (serving.Bounds, vitlab.serve, set()),
        (looking.Loading, vitlab.serve, set()),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_flags_are_arguments_of_the_function_by_the_same_name(command, function, own):
    flags, arguments = inspect.signature(command).parameters, inspect.signature(function).parameters
    assert set(flags) - own <= set(arguments)
    shown = {"image", "rates", "changes", "out", "grid", "space", "also", "workers"}  # whose defaults are a command's
    for name in set(flags) - own - shown:
        assert flags[name].default in (arguments[name].default, inspect.Parameter.empty), name
