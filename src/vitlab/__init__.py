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
    from vitlab.engines.opening import open_engine
    from vitlab.inspection.rollout import explain
    from vitlab.inspection.windows import window_attention
    from vitlab.metrics.fewshot import fewshot
    from vitlab.models.build import build_model
    from vitlab.report.report import read_report
    from vitlab.runs.datasets.index import index_data, index_shards
    from vitlab.runs.datasets.pack import pack_data
    from vitlab.runs.datasets.verify import verify_data
    from vitlab.runs.dedup.dedup import dedup
    from vitlab.runs.download import download
    from vitlab.runs.export import export
    from vitlab.runs.measure.check_data import check_data, data_kinds
    from vitlab.runs.measure.cost import cost
    from vitlab.runs.measure.evaluate import evaluate
    from vitlab.runs.measure.features import features
    from vitlab.runs.measure.fewshot import fewshot_table
    from vitlab.runs.measure.inspection import inspect
    from vitlab.runs.measure.prediction import predict, preprocess
    from vitlab.runs.serve import serve
    from vitlab.runs.study.study import list_studies, plan_study, study
    from vitlab.runs.sweep.sweep import sweep
    from vitlab.runs.sweep.transfer import transfer
    from vitlab.runs.training.run import Run, open_run, reproduce
    from vitlab.runs.training.start import finetune, pretrain
    from vitlab.runs.vtab.check import check_vtab
    from vitlab.runs.vtab.measure import vtab
    from vitlab.runs.vtab.prepare import prepare_vtab
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
    "check_vtab",
    "convert",
    "cost",
    "count",
    "data_kinds",
    "dedup",
    "download",
    "evaluate",
    "explain",
    "export",
    "features",
    "fewshot",
    "fewshot_table",
    "find_recipe",
    "finetune",
    "index_data",
    "index_shards",
    "inspect",
    "list_models",
    "list_recipes",
    "list_releases",
    "list_studies",
    "load_model",
    "open_data",
    "open_engine",
    "open_run",
    "pack_data",
    "plan_study",
    "predict",
    "prepare_vtab",
    "preprocess",
    "pretrain",
    "read_report",
    "reproduce",
    "save_model",
    "serve",
    "study",
    "sweep",
    "transfer",
    "verify_data",
    "vtab",
    "window_attention",
]


def __getattr__(name: str) -> object:
    match name:
        case "build_model":
            from vitlab.models import build as home
        case "load_model":
            from vitlab.weights import load as home
        case "save_model":
            from vitlab.weights import save as home
        case "convert":
            from vitlab.weights import convert as home
        case "dedup":
            from vitlab.runs.dedup import dedup as home
        case "download":
            from vitlab.runs import download as home
        case "export":
            from vitlab.runs import export as home
        case "list_releases":
            from vitlab.weights.released import catalogue as home
        case "open_data":
            from vitlab.data.sources import catalogue as home
        case "open_engine":
            from vitlab.engines import opening as home
        case "check_data" | "data_kinds":
            from vitlab.runs.measure import check_data as home
        case "index_data" | "index_shards":
            from vitlab.runs.datasets import index as home
        case "pack_data":
            from vitlab.runs.datasets import pack as home
        case "verify_data":
            from vitlab.runs.datasets import verify as home
        case "predict" | "preprocess":
            from vitlab.runs.measure import prediction as home
        case "inspect":
            from vitlab.runs.measure import inspection as home
        case "cost":
            from vitlab.runs.measure import cost as home
        case "evaluate":
            from vitlab.runs.measure import evaluate as home
        case "features":
            from vitlab.runs.measure import features as home
        case "fewshot_table":
            from vitlab.runs.measure import fewshot as home
        case "read_report":
            from vitlab.report import report as home
        case "fewshot":
            from vitlab.metrics import fewshot as home
        case "window_attention":
            from vitlab.inspection import windows as home
        case "explain":
            from vitlab.inspection import rollout as home
        case "finetune" | "pretrain":
            from vitlab.runs.training import start as home
        case "Run" | "open_run" | "reproduce":
            from vitlab.runs.training import run as home
        case "serve":
            from vitlab.runs import serve as home
        case "list_studies" | "plan_study" | "study":
            from vitlab.runs.study import study as home
        case "sweep":
            from vitlab.runs.sweep import sweep as home
        case "check_vtab":
            from vitlab.runs.vtab import check as home
        case "prepare_vtab":
            from vitlab.runs.vtab import prepare as home
        case "vtab":
            from vitlab.runs.vtab import measure as home
        case "transfer":
            from vitlab.runs.sweep import transfer as home
        case _:
            raise AttributeError(f"vitlab has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
