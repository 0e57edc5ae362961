"""An engine with latent attention and aiter's double: the tokens of `attention:torch`, which are transformers'.

In float32 every step is the extend kernel's, in bfloat16 decode steps are `mla_decode_fwd`'s.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from plugins.attention_aiter.tests import double
from tests.plugins.toys import Site

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

MODEL = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 24,
}
CONFIG = """
model = { source = "SOURCE", dtype = "DTYPE" }
model_loader = { use = "dummy", options.dummy = { std = 0.3, tokenizer = "none" } }
platform = { use = "cpu", options.threads = 1 }
attention.use = "BACKEND"
memory = { page_size = 16, kv_gib = 0.002 }
scheduler = { chunk_tokens = 16, max_running = 2 }
"""
CODE = """
import json, sys
from srtkit import Engine
prompts = [[(7 * i) % 100 + 1 for i in range(23)], [3, 4, 5]]
with Engine.from_config(sys.argv[1]) as engine:
    found = [engine.generate(prompts, temperature=0, max_tokens=4, ignore_eos=True) for _ in range(2)]
print(json.dumps([[one.cached_tokens, one.token_ids] for answers in found for one in answers]))
"""
"""Prompts at once, in chunks beside decode rows, and once more out of the prefix cache."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Where `aiter-double` is installed."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for a CPU")
    pytest.importorskip("triton", reason="Triton is not installed")
    site = Site(tmp_path / "site")
    site.plugin("attention", "aiter-double", Path(double.__file__).with_name("served.py").read_text("utf-8"))
    return site


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tokens_are_those_of_torch(dtype: str, site: Site, tmp_path: Path) -> None:
    source, config, answers = tmp_path / "model.json", tmp_path / "engine.toml", []
    source.write_text(json.dumps(MODEL))
    for backend in ("torch", "aiter-double"):
        words = {"SOURCE": str(source), "DTYPE": dtype, "BACKEND": backend}
        text = CONFIG
        for name, value in words.items():
            text = text.replace(name, value)
        config.write_text(text)
        done = site.python(CODE, str(config), PYTHONPATH=os.pathsep.join([str(site.path), *sys.path]))
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    assert [cached for cached, _ in answers[0]] == [0, 0, 16, 0]
    assert answers[1] == answers[0]
