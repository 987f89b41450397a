"""Open programs of torch.export from untrusted files.

`torch.export.load` unpickles parts of an archive, evaluates expressions and imports operators by name. An archive is
therefore checked first, in every part: it is opened only if it is as plain as those that vitlab writes. The parts that
were checked are copied to a new archive, which torch opens, so that both read the same bytes.
"""

import re
import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import nn

from vitlab.files.strict_json import parse_json
from vitlab.files.user_files import check_archive, open_regular
from vitlab.require import require

MOST_PARTS = 10_000
LARGEST_TEXT = 256 * 2**20  # bytes of the description of a program
NAME = "model"  # of the program in its archive
TENSOR = re.compile(r"(weight|tensor)_\d{1,6}")
GRAPH, EXAMPLES = f"models/{NAME}.json", f"data/sample_inputs/{NAME}.pt"
LISTS = {"data/weights/": f"{NAME}_weights_config.json", "data/constants/": f"{NAME}_constants_config.json"}
OTHERS = {"archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id"}

TEXT = re.compile(r"[\w.,+> -]{0,1000}", re.ASCII)  # no bracket and no quote: nothing can be called
SYMBOL = r"Symbol\('s\d{1,9}', (positive|integer)=True(, integer=True)?\)"
SIZE = re.compile(  # short, and without powers of numbers, because torch evaluates it
    rf"(?=.{{1,1000}}\Z)((Mul|Add|Max|Min|FloorDiv)\(|Pow\({SYMBOL}, Integer\(\d\)\)"
    rf"|Integer\(-?\d{{1,18}}\)|{SYMBOL}|, |\))+"
)
TREE = {"type", "context", "children_spec", "null", "[]", "builtins.tuple", "builtins.list", "builtins.dict"}
OPERATORS = {  # of aten, with any types of arguments
    *("__and__", "__or__", "_assert_tensor_metadata", "abs", "add", "any", "arange", "avg_pool2d", "cat", "ceil"),
    *("chunk", "clamp", "clamp_min", "clone", "contiguous", "conv2d", "copy_", "detach", "detach_", "diagonal", "div"),
    *("dropout", "einsum", "eq", "expand", "expand_as", "flatten", "floor", "floor_divide", "full_like", "gather"),
    *("ge", "gelu", "group_norm", "gt", "index", "index_select", "layer_norm", "lift_fresh_copy"),
    *("linalg_vector_norm", "linear", "log", "logical_not", "lt", "masked_fill", "matmul", "max", "max_pool2d"),
    *("maximum", "mean", "minimum", "mT", "mul", "ne", "new_ones", "new_zeros", "ones", "ones_like", "pad", "permute"),
    *("promote_types", "reciprocal", "relu", "remainder", "repeat", "roll", "round", "rsub"),
    *("scaled_dot_product_attention", "scatter", "scatter_add", "select", "slice", "softmax", "sort", "split"),
    *("split_with_sizes", "stack", "sub", "sum", "sym_size", "tanh", "to", "topk", "transpose", "unbind", "unflatten"),
    *("unsqueeze", "var", "where", "zeros", "zeros_like"),
}
CONDITION = "torch.ops.higher_order.cond"


def open_program(path: Path) -> nn.Module:
    """Check an archive of torch.export and load its program; raises a ValueError that says what is strange in it."""
    check_archive(path, MOST_PARTS)
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / f"{NAME}.pt2"
        with open_regular(path) as file:
            try:
                with zipfile.ZipFile(file) as given, zipfile.ZipFile(copy, "w") as taken:
                    _copy_checked(given, taken)
            except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, KeyError) as error:
                raise ValueError(f"is damaged or no archive: {error}") from None
        try:
            return torch.export.load(copy).module(check_guards=False)
        except Exception as error:  # torch raises whatever a wrong description leads to
            said = " ".join(str(error).split())
            raise ValueError(f"cannot be opened by torch {torch.__version__}: {said:.200}") from None


def _copy_checked(given: zipfile.ZipFile, taken: zipfile.ZipFile) -> None:
    """Copy the parts of an archive that are as vitlab writes them; raise a ValueError for any other."""
    parts = {}
    for one in given.infolist():
        _, _, name = one.filename.partition("/")
        plain = one.compress_type == zipfile.ZIP_STORED and name not in parts and not one.flag_bits & 1
        require(plain, f"has a part {name!r:.80} that is compressed, encrypted or there twice")
        folder, _, last = name.rpartition("/")
        is_list = LISTS.get(f"{folder}/") == last
        is_tensor = f"{folder}/" in LISTS and TENSOR.fullmatch(last) is not None
        is_known = is_list or is_tensor or name in OTHERS or name in (GRAPH, EXAMPLES)
        require(is_known, f"has a part {name!r:.80}, which programs of vitlab never contain; it may contain code")
        parts[name] = one
    require(GRAPH in parts, f"has no {GRAPH}; it is no program of torch.export")
    require(
        parts[EXAMPLES].file_size == 0 if EXAMPLES in parts else True, "has pickled example inputs; they may run code"
    )
    for folder, last in LISTS.items():
        _check_list(parse_json(_text(given, parts[folder + last]), last))
    _check_graph(parse_json(_text(given, parts[GRAPH]), GRAPH))
    for name, one in parts.items():
        with given.open(one) as source, taken.open(f"{NAME}/{name}", "w", force_zip64=True) as target:
            shutil.copyfileobj(source, target, 2**20)


def _text(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    require(part.file_size <= LARGEST_TEXT, f"has a description of {part.file_size:,} bytes; {LARGEST_TEXT:,} are read")
    return archive.read(part)


def _check_list(value: object) -> None:
    """Raise unless a list of tensors names plain files with raw numbers."""
    listed = value.get("config") if isinstance(value, dict) else None
    require(isinstance(listed, dict), "has a list of tensors that is no object")
    for one in cast(dict[str, Any], listed).values():
        is_raw = isinstance(one, dict) and one.get("use_pickle") is False
        require(is_raw, "has a pickled tensor, which can run code when opened")
        require(TENSOR.fullmatch(str(one.get("path_name"))) is not None, "has a tensor that is in no plain file")
    _check_texts(value)


def _check_graph(value: object) -> None:
    require(isinstance(value, dict), f"has a {GRAPH} that is no object")
    require(cast(dict[str, Any], value).get("guards_code") == [], "has guards, which are code")
    _check_texts(value)


def _check_texts(value: object, key: str = "") -> None:
    """Raise for an operator that is not listed, for notes on source files, and for a text that may be code."""
    if isinstance(value, dict):
        for name, inner in value.items():
            require(TEXT.fullmatch(name) is not None, f"has a key {name!r:.80} that may be code")
            require(
                name != "metadata" or inner in ({}, None) or key == "module_call_graph", "has notes that may be code"
            )
            _check_texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner, key)
    elif isinstance(value, str) and key == "target":
        require(_is_listed(value), f"calls {value!r:.80}, which no program of vitlab does")
    elif isinstance(value, str):
        is_plain = TEXT.fullmatch(value) or SIZE.fullmatch(value) or _is_tree(value)
        require(bool(is_plain), f"has a text that may be code: {value!r:.80}")


def _is_listed(target: str) -> bool:
    *home, name, _ = target.split(".") if target.count(".") == 4 else ["", "", ""]
    return target == CONDITION or (home == ["torch", "ops", "aten"] and name in OPERATORS)


def _is_tree(text: str) -> bool:
    """Whether a text describes nested tuples, lists and dictionaries, as JSON."""

    def is_plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(name in TREE and is_plain(inner) for name, inner in value.items())
        if isinstance(value, list):
            return all(map(is_plain, value))
        return value is None or isinstance(value, int) or value in TREE

    try:
        return is_plain(parse_json(text.encode(), "tree"))
    except ValueError:
        return False
