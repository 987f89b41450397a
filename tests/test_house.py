"""The house rules, checked by reading the code: who may import whom, and what may never appear."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "vitlab"

# The table of docs/tour.md: a part may import itself and what stands here. Torch-free parts say so below.
ANYWHERE = {"errors", "require"}
MAY_IMPORT = {
    "errors": set(),
    "require": set(),
    "shots": set(),
    "files": set(),
    "process": set(),
    "spec": {"files"},
    "paper": {"files", "spec"},
    "counting": {"spec", "paper"},
    "studies": {"files", "spec", "paper", "counting"},
    "models": {"spec", "paper"},
    "npz": {"files"},
    "engines": {"files", "spec", "models"},
    "artefacts": {"files", "spec", "models", "engines"},
    "weights": {"process", "npz", "files", "spec", "paper", "counting", "models", "run_dir"},
    "data": {"drawing", "npz", "files", "spec", "paper", "shots"},
    "world": {"files"},
    "jobs": {"process", "files"},
    "run_dir": {"files", "spec"},
    "train": {"process", "files", "spec", "counting", "world"},
    "metrics": {"files", "spec", "paper", "shots", "report"},
    "drawing": set(),
    "costing": {"engines", "process", "files", "spec", "models", "train", "world"},
    "inspection": {"files", "spec", "models", "drawing"},
    "page": {
        *("files", "process", "spec", "paper", "counting", "models", "data", "engines", "inspection"),
        *("run_dir", "report", "studies"),
    },
    "report": {"files", "spec", "paper", "drawing"},
    "service": {"files", "process", "page"},
    "doctor": {"process"},
    "runs": {
        *("files", "process", "spec", "paper", "counting", "studies", "jobs", "run_dir", "world", "models", "weights"),
        *("shots", "data", "train", "metrics", "costing", "drawing", "inspection", "page", "service", "engines"),
        *("artefacts", "report", "__init__"),
    },
    "commands": {"files", "process", "spec", "paper", "counting", "service"},
    "__init__": {"counting", "paper"},
    "cli": {"__init__", "commands", "process"},
    "__main__": {"process", "cli"},
}
LAZY = {  # inside functions only
    "__init__": {"engines", "models", "weights", "data", "metrics", "inspection", "report", "runs"},
    "commands": {"data", "world", "weights", "drawing", "report", "run_dir", "jobs", "runs"},
    "counting": {"report"},
    "cli": {"runs", "doctor"},
    "doctor": {"data", "engines", "models", "world"},
    "service": {"runs", "world"},
}
WITHOUT_TORCH = {
    *("require", "files", "process", "spec", "paper", "counting", "studies", "run_dir", "report", "service"),
    *("commands", "__init__", "cli"),
}
LIBRARIES = {  # what the core may import besides the standard library
    "torch",
    "numpy",
    "PIL",
    "safetensors",
    "tyro",
    "rich",
    "sklearn",  # [demo], inside a function
    "pyarrow",  # [data], inside a function
    "pillow_heif",  # [heic], inside a function
    *("scipy", "h5py"),  # [vtab], inside functions
    "matplotlib",  # [plot], inside a function
    "ray",  # [ray], inside a function
    "optuna",  # [search], inside a function
    "onnx",  # [onnxruntime], [openvino], inside a function
    "onnxruntime",  # [onnxruntime], inside a function
    "openvino",  # [openvino], inside a function
    *("fastapi", "starlette", "uvicorn", "h11"),  # [serve], in modules that are imported inside functions
    *("fsspec", "aiohttp", "botocore", "yarl", "huggingface_hub"),  # [remote] and the user's choice, likewise
}
EXTRAS = {
    "sklearn",
    "pyarrow",
    "pillow_heif",
    "scipy",
    "h5py",
    "matplotlib",
    "ray",
    "optuna",
    "onnx",
    "onnxruntime",
    "openvino",
}
SERVE = {"fastapi", "starlette", "uvicorn", "h11"}
NEEDS_SERVE = {"app", "connections", "server"}  # modules of the service that subclass what the extra [serve] has
REMOTE = {"fsspec", "aiohttp", "botocore", "yarl", "huggingface_hub"}
NEEDS_REMOTE = {"hub", "s3", "web"}  # modules of data/remote that speak to stores
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "import_module", "loads_pickle", "print"}


def parts():
    return sorted(
        p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    )


def imports(file):
    """(module, is at the top of the file) for every import outside `if TYPE_CHECKING`."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module == "vitlab":
                yield from ((f"vitlab.{alias.name}", id(node) in top) for alias in node.names)
            else:
                yield node.module, id(node) in top


def files_of(part):
    folder = PACKAGE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]


def part_of(module):
    name = module.split(".")[1]
    return name if name in MAY_IMPORT else "__init__"


@pytest.mark.parametrize("part", parts())
def test_imports_flow_one_way(part):
    assert part in MAY_IMPORT, f"{part} is new: give it a row in MAY_IMPORT and in docs/tour.md"
    for file in files_of(part):
        for module, at_top in imports(file):
            if module.split(".")[0] != "vitlab":
                continue
            allowed = MAY_IMPORT[part] | ANYWHERE | {part} | (set() if at_top else LAZY.get(part, set()))
            assert part_of(module) in allowed, f"{file.name} imports {module}"


@pytest.mark.parametrize("part", parts())
def test_libraries_are_those_of_the_design(part):
    for file in files_of(part):
        for module, at_top in imports(file):
            library = module.split(".")[0]
            if library in sys.stdlib_module_names or library == "vitlab":
                continue
            assert library in LIBRARIES, f"{file.name} imports {library}"
            assert not (library in {"torch", "numpy"} and part in WITHOUT_TORCH and at_top), (
                f"{file.name} is torch-free"
            )
            needs_serve = part == "service" and file.stem in NEEDS_SERVE
            needs_remote = file.parent.name == "remote" and file.stem in NEEDS_REMOTE
            given = (set() if needs_serve else SERVE) | (set() if needs_remote else REMOTE)
            assert not (library in EXTRAS | given and at_top), "an extra is imported at the top"
        ours = [m for m, at_top in imports(file) if at_top and m in {f"vitlab.service.{name}" for name in NEEDS_SERVE}]
        assert not ours or (part == "service" and file.stem in NEEDS_SERVE), f"{file.name} needs the extra [serve]"
        remote = [m for m, at_top in imports(file) if at_top and m in {f"vitlab.data.remote.{n}" for n in NEEDS_REMOTE}]
        assert not remote or file.stem in NEEDS_REMOTE, f"{file.name} needs the extra [remote]"


def test_torch_distributed_has_one_home():
    for part in set(parts()) - {"world"}:
        for file in files_of(part):
            assert not [module for module, _ in imports(file) if module.startswith("torch.distributed")], file
            assert "torch.distributed" not in file.read_text(), file


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_nothing_unpickles_evaluates_or_prints(file):
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
            assert not {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"} & {
                n.split(".")[0] for n in names
            }
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            is_method = isinstance(node.func, ast.Attribute)
            assert not (called in FORBIDDEN_CALLS and not (is_method and called in {"print", "eval"})), called
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                assert not (keyword.arg == "weights_only" and value is not True)
                assert not (keyword.arg == "allow_pickle" and value is not False)
            if called == "load" and getattr(getattr(node.func, "value", None), "id", "") == "torch":
                assert any(keyword.arg == "weights_only" for keyword in node.keywords)


@pytest.mark.parametrize("part", sorted(set(parts()) - {"world"}))  # what ranks tell each other is no file of a user
def test_no_json_is_written_with_nan_or_infinity_in_it(part):
    for file in files_of(part):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("dumps", "dump"):
                given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in node.keywords}
                assert given.get("allow_nan") is False, f"{file.name}, line {node.lineno}"


# Whole files that no user names: of this package, of the kernel, and what the program itself has just written.
READ_WHOLE = {
    "paper/imagenet.py",
    "process/busy.py",
    "costing/memory.py",
    "world/frozen.py",
    "weights/files/unpickle.py",
    "weights/released/download.py",
    "jobs/mapping.py",
    "page/web.py",
    "process/confinement.py",
}


def test_files_that_a_user_names_are_read_through_one_gate():
    """A FIFO waits for ever, a device never ends: `user_files` opens regular files only, within bounds."""
    for file in sorted(PACKAGE.rglob("*.py")):
        called = {
            node.func.attr
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        found = called & {"read_text", "read_bytes", "fromfile", "memmap", "loadtxt", "genfromtxt"}
        name = str(file.relative_to(PACKAGE))
        mapping = ("data/sources/shards.py", "data/indexing/comparison.py")  # an index, and a file that it has made
        allowed = {"memmap"} if name in mapping else set()
        assert not found - allowed or name in READ_WHOLE, f"{name} calls {found}; see user_files.read_regular"


def test_help_models_and_version_import_neither_torch_nor_numpy():
    code = (
        "import sys\n"
        "from vitlab.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(m for m in ('torch', 'numpy', 'PIL') if m in sys.modules))"
    )
    for arguments in (["--help"], ["models"], ["--version"], ["predict", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.strip()
        assert done.stderr == ""


def test_importing_vitlab_opens_no_socket():
    code = (
        "import sys\n"
        "sys.addaudithook(lambda event, a: event.startswith('socket.') and sys.exit('socket at import'))\n"
        "import vitlab, vitlab.cli, vitlab.weights.load, vitlab.weights.save, vitlab.runs.measure.prediction"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_wheel_builds_with_every_file_of_the_package(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("vitlab/")}
    found = (f for f in PACKAGE.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    tracked = {str(f.relative_to(PACKAGE.parent)) for f in found}
    assert inside == tracked


def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    for name in filter(None, listed):
        text = (ROOT / name).read_bytes()
        assert b"/root" + b"/" not in text, name
        assert b"/home" + b"/" not in text, name


@pytest.mark.slow
def test_the_peer_libraries_import_where_they_are_promised():
    if not os.environ.get("VITLAB_REQUIRE_PEERS"):
        pytest.skip("VITLAB_REQUIRE_PEERS is not set: `make test` sets it, so that parity cannot silently be skipped")
    import peers

    assert peers.timm.__version__
