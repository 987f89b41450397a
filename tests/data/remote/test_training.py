"""A training from S3, with faults and killed, ends bit for bit like the one from the local shards."""

import json
import multiprocessing
import os
import random
from dataclasses import replace
from functools import partial

import pytest
import torch

import crashes
from data.remote.conftest import KEYS, upload
from faulty_servers import in_turn
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shard_writing import write_shards
from vitlab.data.sources.shards import index_folder
from vitlab.run_dir import CONTENTS, DATA, RUN, RunDir
from vitlab.spec.recipe import Execution
from vitlab.weights.load import load_model

FAULTS = ("500", "cut", "503", "reset", "short", "slow")
NAMED = {RUN, DATA, CONTENTS}  # files that say where the data is, and when it was written


def prepare(environment):
    """In the process of a run: settings for the store, and small blocks, so that there are many requests."""
    multiprocessing.set_start_method("fork", force=True)  # as on Linux: workers die with the run
    os.environ.update(environment)
    from vitlab.data.remote import files, retries

    files.BLOCK = 8192
    retries.PATIENCE = retries.Patience(first=0.01, longest=0.2)


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    for _ in write_shards(open_source("digits?split=test"), folder, "digits", per_shard=60):
        pass
    index_folder(folder)
    return folder


def settings_of(s3, tmp_path):
    """The environment of a run; the cache holds a fraction of the data, so blocks are requested again and again."""
    cache = {"VITLAB_REMOTE_CACHE": str(tmp_path / "cache"), "VITLAB_REMOTE_CACHE_SIZE": "150e3"}
    return KEYS | cache | {"AWS_ENDPOINT_URL": s3.url}


def spec_for(data, workers):
    spec = crashes.small_run(execution=Execution(save_every=2, micro_batch=5, workers=workers, report=False))
    return replace(spec, data=data)


def same_but_for_the_place(remote, local):
    """Checkpoints, weights and numbers are equal; the files that name the data are left out."""
    found = [{name: sha for name, sha in crashes.remains(path).items() if name not in NAMED and "model/" not in name}
             for path in (remote, local)]  # fmt: skip
    assert found[0].keys() == found[1].keys()
    assert {name for name in found[0] if found[0][name] != found[1][name]} <= {"result.json"}
    assert crashes.numbers(remote) == crashes.numbers(local)
    weights = [load_model(path / "model").state_dict() for path in (remote, local)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_training_from_s3_with_faults_is_the_local_one_bit_for_bit(shards, s3, tmp_path, in_memory, workers):
    bucket = f"training-{workers}"
    upload(s3, bucket, [(f"set/{path.name}", path.read_bytes()) for path in sorted(shards.iterdir())])
    crashes.new_run(in_memory / "local", spec_for(f"shards:{shards}", workers))
    assert crashes.code_of(crashes.start(crashes.carry_on, in_memory / "local", partial(prepare, {}))) == 0
    s3.choose = in_turn(*FAULTS, every=3)
    environment = settings_of(s3, tmp_path)
    toll = crashes.Toll()
    crashes.live_and_die(
        in_memory / "remote",
        spec_for(f"shards:s3://{bucket}/set", workers),
        toll,
        random.Random(workers),
        most=4,
        prepare=partial(prepare, environment),
    )
    assert toll.deaths == 4
    assert set(FAULTS) <= set(s3.faults)
    same_but_for_the_place(in_memory / "remote", in_memory / "local")
    (counted,) = list(RunDir(in_memory / "remote").events("requests"))  # of the last life
    assert counted["requests"] > counted["retries"] > 0


@pytest.mark.slow
def test_a_run_moves_from_the_disk_to_s3_and_stays_exact(shards, s3, tmp_path, in_memory):
    upload(s3, "moving", [(f"set/{path.name}", path.read_bytes()) for path in sorted(shards.iterdir())])
    for name in ("local", "moved"):
        crashes.new_run(in_memory / name, spec_for(f"shards:{shards}", 0))
    crashes.finish(in_memory / "local")
    child = crashes.start(crashes.carry_on, in_memory / "moved")
    assert crashes.wait_for(lambda: crashes.last_step(in_memory / "moved") >= 9, child)
    child.kill()
    crashes.code_of(child)
    run = RunDir.open(in_memory / "moved")
    run.write(RUN, json.loads((run.path / RUN).read_text()) | {"data": "shards:s3://moving/set"})
    environment = settings_of(s3, tmp_path)
    assert crashes.code_of(crashes.start(crashes.carry_on, in_memory / "moved", partial(prepare, environment))) == 0
    same_but_for_the_place(in_memory / "moved", in_memory / "local")
    assert RunDir.open(in_memory / "moved").not_exact() == []
