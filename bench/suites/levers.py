"""What each part of the engine `torch` gains: images per second as a multiple of the plain module.

`short last layer` computes only the tokens that the head reads in the last layer; `packed` also lays out the weights
for oneDNN, with GELU and residuals in the same pass; `streams` computes chunks of the batch on one core each.
"""

from collections.abc import Iterator

import torch

from bench import libraries
from bench.limit import MatmulLimit, inference_products
from bench.runner import Call, Case, Contestant
from bench.suites.inference import spec_of
from vitlab.engines import engine as engines
from vitlab.engines.networks import prepared
from vitlab.engines.runtimes import network_function, plain_function

ROUNDS = 9
CASES = (("ViT-Ti/16", 8), ("ViT-B/16", 1), ("ViT-B/16", 8))
CHUNKS = (1, 2, 4)


def cases(is_quick: bool) -> Iterator[Case]:
    for name, batch in CASES[:1] if is_quick else CASES:
        model = libraries.random_model(spec_of(name))
        images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        yield Case(
            f"{name}, batch {batch}",
            contestants(model, images),
            images=batch,
            limit=lambda spec=model.spec, batch=batch: MatmulLimit(inference_products(spec, batch)),
        )


def contestants(model: torch.nn.Module, images: torch.Tensor) -> list[Contestant]:
    def wide(function: engines.Function) -> Call:
        engine = engines.Engine("torch", function)
        return lambda: engine(images)

    def streams(chunk: int, *, pack: bool) -> Call:
        function = network_function(prepared(model, pack=pack))
        engine = engines.Engine("torch", function, function)

        def call() -> torch.Tensor:
            before, engines.CHUNK = engines.CHUNK, chunk
            try:
                return engine(images)
            finally:
                engines.CHUNK = before

        return call

    return [
        Contestant("plain", lambda: wide(plain_function(model))),
        Contestant("short last layer", lambda: wide(network_function(prepared(model)))),
        Contestant("packed", lambda: wide(network_function(prepared(model, pack=True)))),
        *(
            Contestant(f"{name}, streams, chunks of {chunk}", lambda chunk=chunk, pack=pack: streams(chunk, pack=pack))
            for name, pack in (("short last layer", False), ("packed", True))
            for chunk in CHUNKS
            if len(images) > 1
        ),
    ]
