"""The routes of the service. `vitlab serve` imports this module inside a function: FastAPI is an extra."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab.service.access import PROTECTION, Access
from vitlab.service.files import File
from vitlab.service.limits import LARGEST_HEADERS, RETRY_AFTER, Limits
from vitlab.service.metrics import TEXT, Metrics
from vitlab.service.refusals import CODES, Refused
from vitlab.service.supervision import Supervisor
from vitlab.service.uploads import check_headers, read_body, upload_of
from vitlab.service.waiting import Answer, Budget, Job, Kind, Waiting

JSON = "application/json"
POSTED = ("/predict", "/explain", "/api/trace")  # which a browser's address bar would get
PIECE = 2**16  # bytes of an answer that are given to the connection at once
MOST_TOP = 30_000  # classes in one answer
GONE = 499  # the status, in the metrics only, of a request whose client left
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("code", "message", "field")},
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "content": {JSON: {"schema": ERROR}}}
    for status, about in (("4XX", "The request is refused."), ("5XX", "The service cannot answer now."))
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
FORM = {"schema": {"type": "object", "properties": {"image": {"type": "string", "format": "binary"}}}}
PICTURE = {"requestBody": {"required": True, "content": {"image/*": BINARY, "multipart/form-data": FORM}}}
PIXELS = {"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}}
Model = Annotated[str, Query(description="Id of the model; default: the first.", max_length=200)]


@dataclass
class Service:
    """Everything that requests share.

    `pages` are the files of the page by address. `routes` are further paths, such as `api/runs/{id}`, with functions of
    what was given in path and query, which may take their time; `slow_routes` are answered one at a time, so that the
    others do not wait for them. `closing` is called at the end.
    """

    limits: Limits
    access: Access
    waiting: Waiting
    supervisor: Supervisor
    metrics: Metrics
    budget: Budget
    pages: dict[str, File] = field(default_factory=dict)
    routes: Sequence[tuple[str, Callable[[Mapping[str, str]], Any]]] = ()
    slow_routes: Sequence[str] = ()
    closing: Sequence[Callable[[], None]] = ()
    unanswered: int = 0

    def __post_init__(self) -> None:
        self.metrics.ready.value = lambda: self.supervisor.ready is not None
        self.metrics.waiting.value = lambda: len(self.waiting)
        self.metrics.open.value = lambda: self.unanswered
        self.metrics.bytes.value = lambda: self.budget.used

    def models(self) -> list[dict[str, Any]]:
        """What the worker says about the models; raises Refused while it loads them."""
        self.supervisor.check_ready()
        assert self.supervisor.ready is not None
        return self.supervisor.ready[0]["models"]

    def model(self, id: str) -> str:
        """The id of a model; the first one's if none is asked for."""
        known = [model["id"] for model in self.models()]
        if not known:
            raise Refused("unknown_model", "no model is served here, only runs; start vitlab serve with one", "model")
        if id and id not in known:
            raise Refused("unknown_model", f"no model is called {id!r:.60}; there are {', '.join(known)}", "model")
        return id or known[0]

    async def answer(self, request: Request, kind: Kind, model: str, options: dict[str, Any]) -> Response:
        """Read the body, let the worker answer, and forget the request if its client leaves."""
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in ("model", *options) or names.count(name) > 1:
                problem = f"{name!r:.60} is unknown or given twice; there are model, {', '.join(options)}"
                raise Refused("invalid_value", problem, name)
        model = self.model(model)
        self.waiting.check_room()
        self.waiting.arriving += 1
        try:
            body = await read_body(request.stream(), self.limits, self.budget)
        finally:
            self.waiting.arriving -= 1
            self.waiting.note_arrival()
        size = len(body)
        try:
            name, data = upload_of(request.headers.get("content-type", ""), body) if kind != "trace" else ("", body)
            del body  # of a form, only the file is kept
            self.supervisor.check_ready()
            job = Job(kind, model, {**options, "name": name}, data)
            del data
            self.waiting.add(job)
            answer = await self._answer_to(request, job)
        finally:
            self.budget.give(size)
        return Counted(self.budget, answer.body, answer.status, answer.media_type)

    async def _answer_to(self, request: Request, job: Job) -> Answer:
        leaving = asyncio.ensure_future(_departure(request.receive))
        try:
            waiting: set[asyncio.Future[Any]] = {job.answer, leaving}
            await asyncio.wait(waiting, timeout=self.limits.deadline, return_when=asyncio.FIRST_COMPLETED)
            if job.answer.done():
                return job.answer.result()
            if leaving.done():
                raise ClientDisconnect
            raise Refused("deadline", f"the answer was not ready within {self.limits.deadline:g} s")
        finally:
            leaving.cancel()
            job.answer.cancel()  # if it waits, it is not computed
            self.waiting.discard(job)


class Counted(Response):
    """An answer whose bytes are in the budget until they are sent; raises Refused if there is no room for them."""

    def __init__(self, budget: Budget, body: bytes, status: int, media_type: str) -> None:
        super().__init__(body, status, media_type=media_type)
        budget.take_answer(len(body))
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._budget.give(len(self.body))


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_app(service: Service, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> ASGIApp:
    """The application: routes inside, checks that concern all of them around."""
    about = "Classify pictures with Vision Transformers and see what they look at."
    app = FastAPI(title="vitlab", description=about, docs_url=None, redoc_url=None, lifespan=lifespan, responses=ERRORS)
    _add_answers(app, service)
    _add_state(app, service)
    _add_page(app, service)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1]) if first.get("loc") else ""
        return refusal(Refused("invalid_value", f"{field}: {first.get('msg', 'a wrong value')}", field))

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        service.metrics.departed.add()
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return refusal(Refused("internal", CODES["internal"][1]))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        return refusal(Refused(code, CODES[code][1]), error.headers)

    return Guard(app, service)


def refusal(error: Refused, headers: Any = None) -> Response:
    """The answer to a request that is refused."""
    own = dict(headers or {})
    own |= {"retry-after": str(RETRY_AFTER)} if error.status == 503 else {}
    own |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return Response(error.body, error.status, headers=own, media_type=JSON)


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/predict", openapi_extra=PICTURE, summary="Classify a picture, as `vitlab predict --json` does.")
    async def predict(
        request: Request,
        model: Model = "",
        top: Annotated[int, Query(ge=1, le=MOST_TOP, description="Number of classes.")] = 5,
    ) -> Response:
        return await service.answer(request, "predict", model, {"top": top})

    @app.post("/explain", openapi_extra=PICTURE, summary="Where a model looks: the attention rollout of a picture.")
    async def explain(
        request: Request,
        model: Model = "",
        format: Annotated[
            Literal["png", "json", "npy"], Query(description="The picture seen through the map, or the map itself.")
        ] = "png",
    ) -> Response:
        return await service.answer(request, "explain", model, {"format": format})

    @app.post("/api/trace", openapi_extra=PIXELS, summary="One picture through every layer, for the page.")
    async def trace(
        request: Request,
        model: Model = "",
        size: Annotated[str, Query(pattern=r"^(\d{1,5}x\d{1,5})?$", description="HxW; default: the model's.")] = "",
    ) -> Response:
        sides = [int(side) for side in size.split("x")] if size else None
        return await service.answer(request, "trace", model, {"size": sides})


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Whether the service is alive.")
    async def health() -> Response:
        return _json({"status": "live"})

    @app.get("/ready", summary="Whether predictions are answered: 503 until the models are loaded.")
    async def ready() -> Response:
        if service.supervisor.ready is None:
            raise Refused("not_ready", CODES["not_ready"][1])  # to everybody: the problem may contain paths
        return _json({"status": "ready"})

    @app.get("/metrics", summary="Counters in the text format of Prometheus.")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=TEXT)


def _add_page(app: FastAPI, service: Service) -> None:
    @app.get("/api/models", summary="What the page shows about each model.")
    async def models() -> Response:
        return _json(
            {
                "models": [model["card"] for model in service.models() if model["card"] is not None],
                "has_runs": bool(service.routes),
            }
        )

    for address, get in service.routes:
        _add_route(app, service, address, get)

    @app.get("/{path:path}", include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        if f"/{path}" in POSTED:
            raise HTTPException(405, headers={"allow": "POST"})
        cookie = service.access.cookie_for(request.url.query) if not path else ""
        if cookie:
            return Response(status_code=303, headers={"location": "./", "set-cookie": cookie})
        file = service.pages.get(path)
        if file is None:
            raise Refused("not_found", CODES["not_found"][1])
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)


def _add_route(app: FastAPI, service: Service, address: str, get: Callable[[Mapping[str, str]], Any]) -> None:
    pool = ThreadPoolExecutor(1, thread_name_prefix="slow") if address in service.slow_routes else None

    @app.get(f"/{address}", summary="Runs, for the page.")
    async def route(request: Request) -> Response:
        given, deadline = {**request.query_params, **request.path_params}, service.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                said = await asyncio.get_running_loop().run_in_executor(pool, get, given)
        except TimeoutError:
            raise Refused("deadline", f"the answer was not ready within {deadline:g} s") from None
        if said.status >= 400:
            code = "not_found" if said.status == 404 else "invalid_value"
            raise Refused(code, str(json.loads(said.body)["error"]))
        return Counted(service.budget, said.body, said.status, said.media_type)


def _json(value: object) -> Response:
    return Response(json.dumps(value, allow_nan=False).encode() + b"\n", media_type=JSON)


class Guard:
    """Around all routes: who may ask, what is never read, headers of every answer, metrics, errors as JSON."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app, self.service = app, service
        self.paths = {getattr(route, "path", "") for route in app.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, service, status = time.monotonic(), self.service, GONE
        is_read = False

        async def hear() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def say(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.encode(): value.encode() for name, value in PROTECTION.items()}
                headers |= {b"cache-control": b"no-store"} | dict(message.get("headers", []))
                if _has_body(scope) and not is_read:
                    headers[b"connection"] = b"close"  # the rest of the body is not read
                message = {**message, "headers": list(headers.items())}
            body, is_more = message.get("body", b""), message.get("more_body", False)
            for start in range(0, len(body) - PIECE, PIECE):  # so that little waits in the connection's own buffer
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
                message = {**message, "body": body[start + PIECE : start + 2 * PIECE], "more_body": is_more}
            await send(message)

        service.unanswered += 1
        try:
            try:
                self._check(scope)
            except Refused as error:
                await refusal(error)(scope, hear, say)
            else:
                await self.app(scope, hear, say)
        finally:
            service.unanswered -= 1
            path = scope["path"] if scope["path"] in self.paths else "other"
            service.metrics.requests.add(path, str(status))
            service.metrics.seconds.observe(time.monotonic() - start)

    def _check(self, scope: Scope) -> None:
        # h11 bounds what it keeps of incomplete headers; these may have arrived in one piece.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > LARGEST_HEADERS:
            raise Refused("headers_too_large", f"the headers have {size:,} bytes; {LARGEST_HEADERS:,} are allowed")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["http_version"] not in ("1.0", "1.1"):
            raise Refused("wrong_version", CODES["wrong_version"][1])
        access = self.service.access
        access.check_host(headers.get("host"))
        access.check_origin(headers.get("origin"))
        is_page = scope["method"] == "GET" and scope["path"].lstrip("/") in self.service.pages
        if not is_page:  # what everybody can read in the package
            access.check_token(scope["path"], headers.get("authorization", ""), headers.get("cookie", ""))
        check_headers(headers, self.service.limits)


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip() not in (b"", b"0")
