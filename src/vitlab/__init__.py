"""The Vision Transformer paper as a working laboratory.

Names are loaded when they are first used, so that importing vitlab needs neither torch nor numpy.
"""

from typing import TYPE_CHECKING

from vitlab.counting import count
from vitlab.errors import Stopped
from vitlab.paper.names import list_models
from vitlab.paper.recipes.named import find_recipe, list_recipes

if TYPE_CHECKING:
    from vitlab.data.sources.catalogue import open_data
    from vitlab.data.sources.shards import index_shards
    from vitlab.inspection.rollout import explain
    from vitlab.metrics.fewshot import fewshot
    from vitlab.models.build import build_model
    from vitlab.report.report import read_report
    from vitlab.runs.download import download
    from vitlab.runs.measure.check_data import check_data, data_kinds
    from vitlab.runs.measure.evaluate import evaluate
    from vitlab.runs.measure.features import features
    from vitlab.runs.measure.fewshot import fewshot_table
    from vitlab.runs.measure.inspection import inspect
    from vitlab.runs.measure.prediction import predict, preprocess
    from vitlab.runs.sweep.sweep import sweep
    from vitlab.runs.sweep.transfer import transfer
    from vitlab.runs.training.run import Run, open_run, reproduce
    from vitlab.runs.training.start import finetune, pretrain
    from vitlab.weights.convert import convert
    from vitlab.weights.load import load_model
    from vitlab.weights.released.catalogue import list_releases
    from vitlab.weights.save import save_model

__version__ = "0.1.0"
__all__ = [
    "Run",
    "Stopped",
    "build_model",
    "check_data",
    "convert",
    "count",
    "data_kinds",
    "download",
    "evaluate",
    "explain",
    "features",
    "fewshot",
    "fewshot_table",
    "find_recipe",
    "finetune",
    "index_shards",
    "inspect",
    "list_models",
    "list_recipes",
    "list_releases",
    "load_model",
    "open_data",
    "open_run",
    "predict",
    "preprocess",
    "pretrain",
    "read_report",
    "reproduce",
    "save_model",
    "sweep",
    "transfer",
]


def __getattr__(name: str) -> object:
    if name == "build_model":
        from vitlab.models.build import build_model as found
    elif name == "load_model":
        from vitlab.weights.load import load_model as found
    elif name == "save_model":
        from vitlab.weights.save import save_model as found
    elif name == "convert":
        from vitlab.weights.convert import convert as found
    elif name == "download":
        from vitlab.runs.download import download as found
    elif name == "list_releases":
        from vitlab.weights.released.catalogue import list_releases as found
    elif name == "open_data":
        from vitlab.data.sources.catalogue import open_data as found
    elif name == "check_data":
        from vitlab.runs.measure.check_data import check_data as found
    elif name == "data_kinds":
        from vitlab.runs.measure.check_data import data_kinds as found
    elif name == "index_shards":
        from vitlab.data.sources.shards import index_shards as found
    elif name == "predict":
        from vitlab.runs.measure.prediction import predict as found
    elif name == "inspect":
        from vitlab.runs.measure.inspection import inspect as found
    elif name == "preprocess":
        from vitlab.runs.measure.prediction import preprocess as found
    elif name == "evaluate":
        from vitlab.runs.measure.evaluate import evaluate as found
    elif name == "features":
        from vitlab.runs.measure.features import features as found
    elif name == "fewshot_table":
        from vitlab.runs.measure.fewshot import fewshot_table as found
    elif name == "read_report":
        from vitlab.report.report import read_report as found
    elif name == "fewshot":
        from vitlab.metrics.fewshot import fewshot as found
    elif name == "explain":
        from vitlab.inspection.rollout import explain as found
    elif name == "finetune":
        from vitlab.runs.training.start import finetune as found
    elif name == "pretrain":
        from vitlab.runs.training.start import pretrain as found
    elif name == "Run":
        from vitlab.runs.training.run import Run as found  # noqa: N813
    elif name == "open_run":
        from vitlab.runs.training.run import open_run as found
    elif name == "reproduce":
        from vitlab.runs.training.run import reproduce as found
    elif name == "sweep":
        from vitlab.runs.sweep.sweep import sweep as found
    elif name == "transfer":
        from vitlab.runs.sweep.transfer import transfer as found
    else:
        raise AttributeError(f"vitlab has no {name!r}; it offers {', '.join(__all__)}")
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
