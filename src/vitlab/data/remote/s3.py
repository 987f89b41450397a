"""Files in S3 and in stores that speak its protocol, through s3fs.

Endpoint, region and credentials are what s3fs and botocore take from the environment and from fsspec's configuration.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
import fsspec
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.parsers import ResponseParserError
from fsspec.asyn import sync
from fsspec.config import conf

from vitlab.data.remote import stores
from vitlab.data.remote.addresses import Address
from vitlab.data.remote.faults import HINTS, Passing, changed, failed, seconds_to_wait
from vitlab.data.remote.stores import Facts, checked, deadline
from vitlab.errors import RemoteRefused


class S3Store:
    """See `stores.Store`."""

    def __init__(self) -> None:
        given = conf.get("s3", {}).get("config_kwargs", {})
        ours = {"connect_timeout": stores.WAIT, "read_timeout": stores.WAIT, "retries": {"total_max_attempts": 1}}
        self._files: Any = fsspec.filesystem(
            "s3", skip_instance_cache=True, use_listings_cache=False, config_kwargs={**given, **ours}
        )
        self._files.retries = 1  # attempts: ours are counted

    def facts(self, address: Address) -> Facts:
        async def head() -> Facts:
            bucket, _, key = address.rest.partition("/")
            return _facts(await self._files._call_s3("head_object", Bucket=bucket, Key=key), "ContentLength")

        return self._run(address, head, 0)

    def read(self, address: Address, facts: Facts, start: int, stop: int) -> bytes:
        async def get() -> bytes:
            bucket, _, key = address.rest.partition("/")
            span = {"Range": f"bytes={start}-{stop - 1}"} | ({"IfMatch": facts.tag} if facts.tag else {})
            answer = await self._files._call_s3("get_object", Bucket=bucket, Key=key, **span)
            try:
                whole = f"/{facts.size}"
                if answer.get("ETag", "") != facts.tag or not answer.get("ContentRange", whole).endswith(whole):
                    raise changed(address)
                if answer["ContentLength"] != stop - start:  # the range was ignored, or the answer is cut
                    raise Passing(f"an answer of {answer['ContentLength']:,} bytes instead of {stop - start:,}")
                return await answer["Body"].read()
            finally:
                answer["Body"].close()

        return checked(self._run(address, get, stop - start), stop - start)

    def listing(self, folder: Address) -> dict[str, Facts]:
        bucket, _, key = folder.rest.partition("/")
        prefix = f"{key}/" if key else ""
        found: dict[str, Facts] = {}
        further: dict[str, str] = {}
        while True:  # a thousand files at a time

            async def page(further: dict[str, str] = further) -> dict[str, Any]:
                where = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
                return await self._files._call_s3("list_objects_v2", **where, **further)

            answer = self._run(folder, page, 0)
            for entry in answer.get("Contents", ()):
                found[entry["Key"].removeprefix(prefix)] = _facts(entry, "Size")
            if not answer.get("IsTruncated"):
                return found
            further = {"ContinuationToken": answer["NextContinuationToken"]}

    def pinned(self, address: Address) -> Address:
        return address

    def _run(self, address: Address, request: Callable[[], Awaitable[Any]], size: int) -> Any:
        """Run a request in fsspec's event loop, with an end."""
        try:
            return sync(self._files.loop, request, timeout=deadline(size))
        except (NoCredentialsError, PartialCredentialsError):
            raise RemoteRefused(f"there are no credentials to read {address}; {HINTS['s3']}") from None
        except (OSError, ClientError, BotoCoreError, ResponseParserError, aiohttp.ClientError) as error:
            raise _explained(address, error) from None


def _explained(address: Address, error: Exception) -> Exception:
    """The error of a request, from the answer if there was one."""
    told = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(told, ClientError):
        answer = cast(dict[str, Any], told.response)
        metadata = answer.get("ResponseMetadata", {})
        headers, status = metadata.get("HTTPHeaders", {}), metadata.get("HTTPStatusCode", 0)
        wait = seconds_to_wait(headers.get("retry-after"))
        return failed(address, int(status), wait, answer["Error"].get("Code", ""))
    return Passing(type(error).__name__)


def _facts(entry: dict[str, Any], size: str) -> Facts:
    return Facts(int(entry[size]), int(entry["LastModified"].timestamp()) * 10**9, entry.get("ETag", ""))
