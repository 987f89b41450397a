"""Which addresses are read, and that no secret is repeated."""

import subprocess
import sys

import pytest

from vitlab.data.remote.addresses import is_address, parse_address
from vitlab.data.sources.catalogue import is_remote, open_source
from vitlab.page.run_browser import mistakes


@pytest.mark.parametrize(
    "text",
    [
        *("s3://bucket", "s3://bucket/a/b.tar", "gs://bucket/a", "https://host/a b/ü.tar", "https://host:8443/x"),
        *("hf://datasets/owner/name", "hf://datasets/owner/name@main/data/x.parquet", "http://127.0.0.1:80/x"),
        *("http://[::1]:80/x", "http://127.1.2.3/x"),
    ],
)
def test_addresses_that_are_allowed_stay_as_they_are(text):
    assert is_address(text)
    assert str(parse_address(text)) == text
    assert str(parse_address(f"{text}/")) == text


@pytest.mark.parametrize(
    "text",
    [
        *("file:///etc/passwd", "ssh://host/x", "github://a:b@c/x", "ftp://host/x", "memory://x", "local://x"),
        *(
            "http://example.com/x",
            "http://169.254.169.254/latest",
            "http://localhost/x",
            "http://127.0.0.1.example.com/",
        ),
        *("s3://", "s3://bucket//x", "s3://bucket/../x", "s3://bucket/./x", "https://", "s3://a\nb", "https://h/a\\b"),
        *("hf://owner/name", "hf://datasets/name", "hf://spaces/a/b", "abfs://x/y", "simplecache::s3://x/y"),
        *("filecache://x", "reference://x", "zip://x", "arrow_hdfs://x", "jupyter://x", "dir://x", "smb://x/y"),
    ],
)
def test_other_addresses_are_refused(text):
    with pytest.raises(ValueError):
        parse_address(text)
    with pytest.raises(ValueError):
        open_source(f"shards:{text}")


@pytest.mark.parametrize(
    "text",
    [
        *("https://user:hunter2@host/x", "s3://KEY:hunter2@bucket/x", "https://host/x?X-Amz-Signature=hunter2"),
        *("https://host/x#hunter2", "s3://bucket/x?versionId=hunter2"),
    ],
)
@pytest.mark.parametrize("kind", ["shards:", "parquet:", ""])
def test_secrets_in_addresses_are_refused_and_not_repeated(text, kind):
    with pytest.raises(ValueError) as caught:
        open_source(kind + text.replace("?", "%3F"))
    assert "hunter2" not in str(caught.value)


def test_a_spec_without_a_kind_is_told_what_is_missing():
    with pytest.raises(ValueError, match=r"did you mean 'shards:s3://b/x'"):
        open_source("s3://b/x")
    with pytest.raises(ValueError, match=r"did you mean 'parquet:https://h/x.parquet'"):
        open_source("https://h/x.parquet")
    with pytest.raises(ValueError, match=r"folder data is not read from s3://b/x; shards and parquet"):
        open_source("folder:s3://b/x")


PROGRAM = """
import sys
import vitlab
from vitlab.data.sources.catalogue import open_source
for name in ("fsspec", "s3fs", "aiohttp", "botocore", "huggingface_hub"):
    assert name not in sys.modules, name
sys.modules[{missing!r}] = None
try:
    open_source({spec!r})
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("spec", "missing", "said"),
    [
        ("shards:s3://b/x", "s3fs", "s3:// addresses need s3fs: pip install 'vitlab[remote]'"),
        ("shards:s3://b/x", "fsspec", "s3:// addresses need s3fs: pip install 'vitlab[remote]'"),
        ("shards:https://h/x", "aiohttp", "https:// addresses need aiohttp: pip install 'vitlab[remote]'"),
        ("shards:gs://h/x", "gcsfs", "gs:// addresses need gcsfs: pip install 'vitlab[remote]' gcsfs"),
        (
            "hf:a/b",
            "huggingface_hub",
            "hf:// addresses need huggingface_hub: pip install 'vitlab[remote]' huggingface_hub",
        ),
    ],
)
def test_a_missing_package_is_named_and_nothing_is_imported_before(tmp_path, spec, missing, said):
    program = PROGRAM.format(missing=missing, spec=spec)
    environment = {"VITLAB_REMOTE_CACHE": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert made.stdout.strip() == said, made.stderr


@pytest.mark.parametrize(
    "spec", ["shards:s3://b/x", "parquet:https://h/x.parquet", "hf:a/b?split=train", "shards:http%3A//127.0.0.1/x"]
)
def test_showing_a_run_makes_no_requests(spec):
    assert is_remote(spec)
    with pytest.raises(LookupError, match="remote store"):
        mistakes._open(spec, 0.0)


@pytest.mark.parametrize("spec", ["shards:/a/b", "folder:a", "digits", "parquet:x.parquet?split=a"])
def test_local_data_is_not_remote(spec):
    assert not is_remote(spec)
