"""The whole server with aiter's double as its attention: two processes, HTTP, the quick start's model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from plugins.attention_aiter.tests import double
from tests.live import LiveServer, live_server
from tests.parity import reference
from tests.plugins.toys import Site

pytestmark = [pytest.mark.model, pytest.mark.full, pytest.mark.timeout(600)]

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.toml"
SETS = {"attention.use": "aiter-double", "model.dtype": "float32", "memory.kv_gib": "0.5", "memory.page_size": "16"}
TOKENS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """It answers; its attention is the plugin's over the double."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for a CPU")
    pytest.importorskip("triton", reason="Triton is not installed")
    site = Site(tmp_path_factory.mktemp("site"))
    site.plugin("attention", "aiter-double", Path(double.__file__).with_name("served.py").read_text("utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site.path), prepend=os.pathsep)
        with live_server(QUICKSTART, SETS) as server:
            yield server


def test_its_tokens_are_those_of_the_reference(server: LiveServer) -> None:
    """Prompts at once, in chunks beside decode rows, and once more out of the prefix cache."""
    cases = sorted(reference.load()[1], key=lambda case: len(case.ids))[:4]
    parameters = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    request = {"input_ids": [case.ids for case in cases], "sampling_params": parameters}
    for _ in range(2):
        answer = httpx.post(f"{server.base_url}/generate", json=request, timeout=500)
        assert answer.status_code == 200, f"{answer.text}\n{server.output()}"
        found = [result["output_ids"] for result in answer.json()]
        assert found == [case.tokens[:TOKENS] for case in cases]
