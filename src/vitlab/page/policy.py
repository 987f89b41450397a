"""The content security policy of the page: nothing from another host, and nothing to one."""

POLICY = {
    "default-src": "'none'",
    "script-src": "'self' 'wasm-unsafe-eval'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "connect-src": "'self'",
    "worker-src": "'self' blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def policy(*, is_header: bool = True) -> str:
    """The content security policy as a header, or for a <meta> element, which cannot say who may embed the page."""
    rules = {name: value for name, value in POLICY.items() if is_header or name != "frame-ancestors"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())
