"""An S3 server on the loopback interface, and an environment in which only it can be reached."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from faulty_servers import Proxy

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def moto():
    """The port of moto's server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """An environment without settings and credentials of the user."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_", "HF_", "VITLAB_REMOTE"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", str(tmp_path / "cache"))
    return monkeypatch


@pytest.fixture
def s3(moto, clean, tmp_path):
    """A proxy before the S3 server: set its `choose` to have faults."""
    with Proxy(moto) as proxy:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": proxy.url}).items():
            clean.setenv(name, value)
        yield proxy


def upload(proxy, bucket, files):
    """Put (key, bytes) into a bucket, without faults."""
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{proxy.port}")
    client.create_bucket(Bucket=bucket)
    for key, data in files:
        client.put_object(Bucket=bucket, Key=key, Body=data)
    client.close()


def jpegs(count, seed=0, size=(20, 24)):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (*size, 3), np.uint8)).save(file, "JPEG")
        yield file.getvalue()
