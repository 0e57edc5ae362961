"""A server on a free loopback port, run by uvicorn in a thread, in front of an engine double."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from srtkit.config.settings import ServerSection
from srtkit.plugins.loaded import LoadedPlugin, WiredPlugin
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.serve.app import create_app
from srtkit.serve.prompts import ServedModel, sampling_defaults
from srtkit.serve.service import Service, start_pump
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.chat import ChatTemplate
from srtkit.text.tokenizer import Tokenizer
from tests.serve.engine_double import STORY, EngineDouble

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}{% if shout %}!{% endif %}"
)
SPECIAL = ("<|bos|>", "<|eos|>", "<|start|>", "<|end|>")
MAX_CONTEXT = 400


@dataclass(frozen=True)
class Target:
    """Where a server is; all that a test which also runs against a real one may know."""

    base_url: str
    model: str

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.base_url.rpartition(":")[2])


@dataclass(frozen=True)
class Running:
    """A server and the engine double behind it."""

    target: Target
    service: Service
    engine: EngineDouble
    tokenizer: Tokenizer


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token (the ids of ASCII are its codes); BOS is added to texts."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    order = sorted(alphabet, key=lambda char: decoders.ByteLevel().decode([char]).encode()[0])
    printable = [char for char in order if ord(char) < 128]
    vocab = {char: ord(char) for char in printable} | {"Ġ": 32, "Ċ": 10}
    free = iter(sorted(set(range(256)) - set(vocab.values())))
    vocab |= {char: next(free) for char in sorted(alphabet) if char not in vocab}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    return Tokenizer(TokenizerData(backend.to_str, bos="<|bos|>", eos=("<|eos|>",)))


def served_model(tokenizer: Tokenizer, generation: Mapping[str, Any] = {}) -> ServedModel:
    """A model whose texts end with either of two ids."""
    return ServedModel(
        name="toy",
        aliases=("default", "package:toys/toy.gguf"),
        max_context=MAX_CONTEXT,
        tokenizer=tokenizer,
        chat=ChatTemplate(TEMPLATE, tokenizer.bos_token, tokenizer.eos_token),
        defaults=sampling_defaults(generation, (257, 259)),
        vocab_size=264,  # more rows in the LM head than tokens
        created=1_700_000_000,
    )


def plugin(kind: str, name: str) -> LoadedPlugin:
    """An installed plugin, with its defaults."""
    offer = discover().find(kind, name)
    descriptor = load(offer)
    return LoadedPlugin(WiredPlugin(offer, descriptor.contract, {}), descriptor, descriptor.options())


@contextmanager
def serving(
    *,
    max_waiting: int = 1024,
    pace: float = 0.0,
    max_rows: int = 64,
    degraded: tuple[str, ...] = (),
    generation: Mapping[str, Any] = {},
    **settings: Any,
) -> Iterator[Running]:
    """Start a server; leaving the block stops it."""
    tokenizer = byte_tokenizer()
    engine = EngineDouble(tokenizer.encode(STORY, add_special=False), 257, pace, max_rows)
    served = served_model(tokenizer, generation)
    info = {"wiring": "toys", "model": served.card()}
    service = Service(engine.requests, served, info, ServerSection(**settings), degraded, max_waiting)
    app = create_app(service, [plugin("routes", "admin")])
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=asyncio.run, args=(_serve(server, service, engine, listener),), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Running(Target(f"http://127.0.0.1:{port}", served.name), service, engine, tokenizer)
    finally:
        server.should_exit = True
        thread.join(10)
        engine.stop()
        assert not thread.is_alive()


async def _serve(server: uvicorn.Server, service: Service, engine: EngineDouble, listener: socket.socket) -> None:
    stop_pump = start_pump(engine.deltas, service, asyncio.get_running_loop())
    try:
        await server.serve(sockets=[listener])
    finally:
        stop_pump()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll; an assertion when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
