"""The files of configs/ for AMD, on a machine without ROCm: every line holds, and what the comments offer, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from srtkit.cli.main import main
from srtkit.config.settings import load_settings
from srtkit.plugins.registry import discover
from srtkit.plugins.wiring import wire
from tools.dists import find

CONFIGS = Path(__file__).parents[2] / "configs"
CARDS = {"mi300x": "gfx942", "mi300x-mla": "gfx942", "mi300x-moe": "gfx942", "mi355x": "gfx950"}
ELSEWHERE = {"mi300x-mla": "gfx950", "mi300x-moe": "gfx950"}
"""Files that have no sister for the other card: they are for it, too."""
FP8 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "num_hidden_layers": 60,
    "first_k_dense_replace": 60,
    "num_attention_heads": 128,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rope_theta": 10000.0,
}
"""DeepSeek-V2, but with a plain MLP in every layer."""
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
MODELS = {"mi300x": LLAMA_8B, "mi300x-mla": LATENT, "mi300x-moe": QWEN3_30B_A3B, "mi355x": LLAMA_70B}
WITHOUT_LATENTS = pytest.mark.parametrize("card", [card for card in CARDS if card != "mi300x-mla"])


@pytest.fixture(params=[*CARDS.items(), *ELSEWHERE.items()], ids=" on ".join)
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file; CARDS has the card that it is for in this test."""
    monkeypatch.setitem(CARDS, *request.param)
    return str(request.param[0])


@pytest.fixture
def model(card: str, tmp_path: Path) -> Path:
    """A folder that describes the file's model; its weights are never read."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS[card]))
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def explained(card: str, model: Path, capsys: pytest.CaptureFixture[str], *sets: str) -> str:
    given = [word for text in (f"model.source={model}", *sets) for word in ("--set", text)]
    assert main(["explain", str(CONFIGS / f"{card}.toml"), "--assume", CARDS[card], *given]) == 0
    return capsys.readouterr().out


def test_every_named_plugin_is_found_and_nothing_stands_in(card: str) -> None:
    settings = load_settings(CONFIGS / f"{card}.toml", environ={})
    plan, facts, _ = wire(settings, discover(), assume=CARDS[card])
    assert (facts.platform, facts.architecture, plan.degraded) == ("rocm", CARDS[card], ())
    wired = {(plugin.offer.kind, plugin.offer.name) for plugin in plan.plugins}
    assert {("attention", "aiter"), ("ops", "aiter"), ("ops", "triton"), ("graph_runner", "cuda-full")} <= wired


def test_the_two_packages_that_the_file_says_bring_all_that_it_names(card: str) -> None:
    """By what the distributions declare; `make amd-from-wheels` installs them."""
    dists = {dist.name: dist for dist in find()}
    brought, wanted = set(), {("srtkit-core", ""), ("srtkit-plugin-attention-aiter", "")}
    while wanted:
        name, extra = wanted.pop()
        if name in dists and (name, extra) not in brought:
            brought.add((name, extra))
            project = dists[name].project
            for line in project["optional-dependencies"][extra] if extra else project["dependencies"]:
                one = Requirement(line)
                wanted |= {(one.name, extra) for extra in ("", *one.extras)}
    plan, _, _ = wire(load_settings(CONFIGS / f"{card}.toml", environ={}), discover(), assume=CARDS[card])
    assert {plugin.offer.distribution for plugin in plan.plugins} <= {name for name, _ in brought}


def test_check_and_explain_take_the_file(card: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(CONFIGS / f"{card}.toml"), "--assume", CARDS[card]]) == 0
    assert "fine" in capsys.readouterr().out
    text = explained(card, model, capsys)
    assert "page 16, attention:aiter" in text
    assert "steps in flight: 1" in text
    assert "degraded" not in text and "passed over" not in text
    weights, kv = {  # as the comments say
        ("mi300x", "gfx942"): ("14.96", "150."),
        ("mi300x-mla", "gfx942"): ("39.7", "121.03 GiB = 1,880,048 tokens"),
        ("mi300x-mla", "gfx950"): ("39.7", "205."),
        ("mi300x-moe", "gfx942"): ("56.87", "110."),
        ("mi300x-moe", "gfx950"): ("56.87", "194."),
        ("mi355x", "gfx950"): ("131.4", "116."),
    }[card, CARDS[card]]
    assert f"weights    {weights}" in text and f"KV pages   {kv}" in text


@WITHOUT_LATENTS
def test_what_the_comments_offer_is_taken(card: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = explained(
        card, model, capsys, "memory.page_size=64", 'attention.fallback=["triton"]', "attention.shadow=triton"
    )
    assert "attention:shadow" in plain
    tiers = explained(card, model, capsys, "prefix_cache.use=hiradix", 'prefix_cache.options={"host_gib": 64}')
    assert "host tier  64.00 GiB" in tiers
    assert explained(card, model, capsys, f"memory.kv_dtype={FP8[CARDS[card]]}", "memory.page_size=1")


def test_the_other_cards_fp8_is_refused(card: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (other,) = set(FP8.values()) - {FP8[CARDS[card]]}
    given = ["--set", f"model.source={model}", "--set", f"memory.kv_dtype={other}"]
    assert main(["explain", str(CONFIGS / f"{card}.toml"), "--assume", CARDS[card], *given]) != 0
    assert f"does not store KV in {other}" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("card", ["mi300x-mla"])
def test_what_the_comments_on_latents_say(card: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = "128/1 heads x 576, layout latent-rope/1"
    for given in ("model.dtype=float16", "memory.page_size=1", "memory.page_size=64"):
        assert stored in explained(card, model, capsys, given)
    (model / "config.json").write_text(json.dumps(LATENT | {"kv_lora_rank": 256}))
    other = explained(card, model, capsys, 'attention.fallback=["triton"]')
    assert "layout latent/1, page 16, attention:triton" in other and "degraded" in other
    (model / "config.json").write_text(json.dumps(LATENT))
    for given in ("attention.shadow=triton", f"memory.kv_dtype={FP8[CARDS[card]]}"):
        words = [word for one in (f"model.source={model}", given) for word in ("--set", one)]
        assert main(["explain", str(CONFIGS / f"{card}.toml"), "--assume", CARDS[card], *words]) != 0
        assert "no KV layout suits all" in capsys.readouterr().err
    (model / "config.json").write_text(json.dumps(LATENT | {"first_k_dense_replace": 1}))
    words = ["--set", f"model.source={model}"]
    assert main(["explain", str(CONFIGS / f"{card}.toml"), "--assume", CARDS[card], *words]) != 0
    assert "first_k_dense_replace" in capsys.readouterr().err
