"""Why a request is refused: the status, a code for programs and a message for people. Standard library only."""

import json

CODES = {  # code: status, meaning; the documents and the tests read this table
    "bad_request": (400, "the request is not valid HTTP, or its multipart body is malformed"),
    "invalid_value": (400, "a query parameter or the body has a wrong value; `field` names it"),
    "unauthorized": (401, "the token is missing or wrong"),
    "foreign_origin": (403, "the request comes from a page of another site"),
    "not_found": (404, "no such path"),
    "unknown_model": (404, "no such model; the message lists them"),
    "method_not_allowed": (405, "the path takes another method"),
    "timeout": (408, "headers or body took too long to arrive"),
    "too_large": (413, "the body is larger than allowed"),
    "unsupported_encoding": (415, "the body is compressed; send it as it is"),
    "unknown_host": (421, "the Host header names another machine"),
    "image": (422, "the picture cannot be read; the code is the reason, such as truncated or too_many_pixels"),
    "no_attention": (422, "the model has no attention between patches"),
    "killed_worker": (422, "this input ended the worker twice, so it is not tried again"),
    "headers_too_large": (431, "the request line and headers are larger than allowed"),
    "internal": (500, "an error in the service; its log says more"),
    "not_implemented": (501, "a transfer encoding other than chunked"),
    "overloaded": (503, "the queue is full, or too many connections are open"),
    "not_ready": (503, "the models are loading, or the worker is restarting"),
    "worker_lost": (503, "the worker ended while it computed this request"),
    "deadline": (503, "the answer was not ready in time"),
    "out_of_memory": (503, "the worker has not enough memory for this request"),
    "wrong_version": (505, "a version of HTTP other than 1.0 and 1.1"),
}


class Refused(Exception):  # noqa: N818 - says what happened
    """A request that is not answered: `code` is one of CODES, or for a picture the reason of the image gate."""

    def __init__(self, code: str, message: str, field: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.status = status or CODES[code][0]
        self.code, self.message, self.field = code, message, field

    @property
    def body(self) -> bytes:
        """The JSON that the client gets."""
        return error_body(self.code, self.message, self.field)


def error_body(code: str, message: str, field: str = "") -> bytes:
    """`{"error": {"code", "message", "field"}}`, in plain ASCII; long messages are cut."""
    error = {"code": code, "message": message[:1000], "field": field[:100]}
    return json.dumps({"error": error}, allow_nan=False).encode() + b"\n"
