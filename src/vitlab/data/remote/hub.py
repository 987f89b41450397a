"""Data sets of a hub: files of a repository, listed by huggingface_hub and read by range requests.

A branch such as `main` is looked up once, when the data is opened; from then on one commit is read.
"""

import re
from collections.abc import Callable
from typing import Any

import fsspec
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from vitlab.data.remote.addresses import Address, is_loopback
from vitlab.data.remote.faults import Missing, Passing, failed
from vitlab.data.remote.stores import Facts
from vitlab.data.remote.web import WebStore
from vitlab.errors import RemoteRefused

COMMIT = re.compile(r"[0-9a-f]{40}")


class HubStore(WebStore):
    """See `stores.Store`."""

    def __init__(self) -> None:
        super().__init__()
        self._hub: Any = fsspec.filesystem("hf", skip_instance_cache=True)
        self._api = HfApi(endpoint=self._hub.endpoint, token=self._hub.token)
        endpoint = self._api.endpoint
        if not (endpoint.startswith("https://") or is_loopback(endpoint)):
            raise RemoteRefused(f"the hub's address {endpoint!r:.200} is not https; check HF_ENDPOINT")

    def pinned(self, address: Address) -> Address:
        repository, revision, path = self._parts(address)
        if COMMIT.fullmatch(revision):
            return address
        found = _tried(address, lambda: self._api.dataset_info(repository, revision=revision or None, timeout=30))
        return Address("hf", f"datasets/{repository}@{found.sha}{f'/{path}' if path else ''}")

    def facts(self, address: Address) -> Facts:
        return _facts(_tried(address, lambda: self._hub.info(address.rest, refresh=True)), address)

    def listing(self, folder: Address) -> dict[str, Facts]:
        found = _tried(folder, lambda: self._hub.ls(folder.rest, detail=True, refresh=True))
        return {entry["name"].rpartition("/")[2]: _facts(entry, folder) for entry in found if entry["type"] == "file"}

    def read(self, address: Address, facts: Facts, start: int, stop: int) -> bytes:
        # A commit does not change, and the tag of a commit's file is not the ETag that its server sends.
        return super().read(address, Facts(facts.size), start, stop)

    def url(self, address: Address) -> str:
        repository, revision, path = self._parts(address)
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repository, path, repo_type="dataset", revision=revision or None, endpoint=self._api.endpoint)

    def headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers(token=self._hub.token)

    def _parts(self, address: Address) -> tuple[str, str, str]:
        """(OWNER/NAME, revision or "", path in the repository)."""
        _, owner, name, *path = address.rest.split("/")
        name, _, revision = name.partition("@")
        if revision == "refs":  # @refs/convert/parquet and @refs/pr/1 have slashes
            revision, path = "/".join([revision, *path[:2]]), path[2:]
        return f"{owner}/{name}", revision.replace("%2F", "/"), "/".join(path)


def _tried(address: Address, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Exception as error:  # httpx's, huggingface_hub's and OSError
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, OfflineModeIsEnabled):
            raise RemoteRefused(f"{address} is not read because HF_HUB_OFFLINE is set; unset it") from None
        if isinstance(error, FileNotFoundError) or status in (401, 404):
            raise Missing(f"{address} does not exist, or you may not see it; check the name, or log in") from None
        if isinstance(status, int):
            raise failed(address, status) from None
        if isinstance(error, NotImplementedError | ValueError):
            raise RemoteRefused(f"{address} cannot be read; check the name") from None
        raise Passing(type(error).__name__) from None


def _facts(entry: dict[str, Any], address: Address) -> Facts:
    if entry["type"] != "file":
        raise Missing(f"{address} is a folder; give the address of a file")
    large = entry.get("lfs")
    return Facts(int(entry["size"]), 0, str(large["sha256"] if large else entry.get("blob_id") or ""))
