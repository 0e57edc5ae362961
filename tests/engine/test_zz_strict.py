from __future__ import annotations
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
import numpy as np
import pytest
import srtkit_plugin_attention_torch as attention_torch
from srtkit import Engine
from srtkit_conformance.kits.server.whole_tables import WholeTables
from tests.live_server import tiny

P = [list(range(5, 75)), [1], [7] * 17, [3, 1, 4, 1, 5, 9, 2, 6, 5], list(range(100, 133)), [8, 9]]
ASK: list[tuple[list[int], dict[str, Any]]] = [
    (P[0], {"temperature": 0}),
    (P[1], {"temperature": 0, "logprobs": 3}),
    (P[2], {"temperature": 0.9, "seed": 5}),
    (P[3], {"temperature": 0, "min_tokens": 4, "stop_token_ids": list(range(0, 15)), "logprobs": 2}),
    (P[4], {"temperature": 0.7, "seed": 9, "top_k": 7, "min_tokens": 3, "stop_token_ids": list(range(20, 35)), "logprobs": 1}),
    (P[5], {"temperature": 0, "max_tokens": 1}),
    (P[2], {"temperature": 0, "max_tokens": 3}),
    (P[3], {"temperature": 1.1, "top_p": 0.8, "seed": 2}),
    (P[1], {"temperature": 0, "min_tokens": 2, "stop_token_ids": [1,2,3]}),
]

def conf(folder, platform, runners, depth, chunk=16, rows=4):
    model = folder / "model"
    if not model.exists():
        tiny.make_model(model)
    file = folder / f"{platform}.toml"
    file.write_text(
        f'[model]\nsource = "{model}"\ndtype = "float32"\nmax_context = 96\n[platform]\nuse = "{platform}"\n'
        + ("[platform.options]\nthreads = 1\n" if platform == "cpu" else "") +
        f'[attention]\nuse = "torch"\n[graph_runner]\nuse = {runners}\n[memory]\nkv_gib = 0.03\npage_size = 4\n'
        f"[scheduler]\nmax_running = {rows}\nchunk_tokens = {chunk}\ndepth = {depth}\n")
    return file

def result(one):
    lp = getattr(one, "logprobs", None)
    return one.token_ids, one.finish_reason, lp

def close(a, b):
    assert a[0] == b[0], (a, b)
    assert a[1] == b[1]
    assert (a[2] is None) == (b[2] is None)
    if a[2] is not None:
        fa, fb = flat(a[2]), flat(b[2])
        assert len(fa)==len(fb)
        np.testing.assert_allclose(fa, fb, atol=1e-3)

def flat(x):
    out=[]
    def walk(v):
        if isinstance(v, dict):
            for k in v: walk(v[k])
        elif isinstance(v,(list,tuple)):
            for k in v: walk(k)
        elif isinstance(v, (int,float)): out.append(float(v))
        elif hasattr(v, "__dataclass_fields__") or hasattr(v, "__struct_fields__"):
            for f in (getattr(v,"__struct_fields__",None) or v.__dataclass_fields__): walk(getattr(v,f))
    walk(x)
    return out

@pytest.fixture(scope="module")
def folder(tmp_path_factory): return tmp_path_factory.mktemp("d")

@pytest.fixture(scope="module")
def expected(folder):
    with Engine.from_config(conf(folder, "cpu", '["eager"]', 0, rows=1)) as e:
        return [result(e.generate([ids], **{"max_tokens": 8, **p})[0]) for ids, p in ASK]

def together(e):
    async def go():
        return await asyncio.gather(*(e.agenerate([ids], **{"max_tokens": 8, **p}) for ids, p in ASK))
    return [result(one) for (one,) in asyncio.run(go())]

@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("runner", ["eager", "cuda-full", "cuda-piecewise", "cuda-breakable"])
@pytest.mark.parametrize("platform", ["fakedev", "cpu"])
def test_it(folder, expected, monkeypatch, runner, depth, platform):
    if platform == "cpu" and runner != "eager": pytest.skip("")
    whole = attention_torch.capabilities
    if runner in ("cuda-full", "cuda-breakable"):
        monkeypatch.setattr(attention_torch, "capabilities", lambda f: replace(whole(f), capture="any", features=frozenset()))
        monkeypatch.setattr(attention_torch, "build", WholeTables)
    use = '["eager"]' if runner == "eager" else f'["{runner}", "eager"]'
    with Engine.from_config(conf(folder, platform, use, depth)) as e:
        for _ in range(2):
            for a, b in zip(together(e), expected, strict=True):
                close(a, b)

def test_known_and_draw(folder, expected, monkeypatch):
    import srtkit.engine.buffers as buffers
    import srtkit.engine.build as build
    monkeypatch.setattr(buffers, "KNOWN", 1)
    monkeypatch.setattr(build, "reference_sample", None)
    test_it(folder, expected, monkeypatch, "cuda-full", 2, "fakedev")
