"""Figures against numpy and against traces whose figures can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srtkit_plugin_cli_bench.metrics import Spread, figures, percentile, summarise
from srtkit_plugin_cli_bench.trace import Trace

SECONDS = st.floats(min_value=0, max_value=1e4)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.floats(min_value=0, max_value=100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_figures_by_hand() -> None:
    early = Trace(10.0, [10.5, 10.6, 10.8], prompt_tokens=7, output_tokens=3, cached_tokens=4)
    late = Trace(11.0, [11.1, 12.0], prompt_tokens=5, output_tokens=4, cached_tokens=0)  # 4 tokens in 2 events
    found = figures([early, late], asked_tokens=4)
    assert found["seconds"] == pytest.approx(2.0)  # from 10.0 to 12.0
    assert found["output_tok_s"] == pytest.approx(7 / 2)
    assert found["total_tok_s"] == pytest.approx((7 + 12) / 2)
    assert found["ttft_mean_s"] == pytest.approx((0.5 + 0.1) / 2)
    assert found["ttft_p50_s"] == pytest.approx(0.3)
    assert found["ttft_p99_s"] == pytest.approx(0.1 + 0.99 * 0.4)
    assert found["itl_mean_s"] == pytest.approx((0.1 + 0.2 + 0.9) / 3)
    assert found["itl_p50_s"] == pytest.approx(0.2)
    assert found["tpot_mean_s"] == pytest.approx((0.3 / 2 + 0.9 / 3) / 2)
    assert found["decode_tok_s"] == pytest.approx(1 / 0.225)
    counts = {"ok": 2, "failed": 0, "short": 1, "events": 5, "cached_tokens": 4, "prompt_tokens": 12}
    assert {name: found[name] for name in counts} == counts


def test_failed_requests_are_counted_and_left_out() -> None:
    good = Trace(1.0, [2.0, 3.0], prompt_tokens=1, output_tokens=2, cached_tokens=0)
    bad = Trace(0.0, [9.0], output_tokens=100, error="connection lost")
    found = figures([good, bad], asked_tokens=2)
    assert (found["ok"], found["failed"], found["seconds"], found["output_tokens"]) == (1, 1, 2.0, 2)
    assert figures([bad], asked_tokens=2) == {"ok": 0, "failed": 1}


def test_nothing_is_invented_for_a_single_token() -> None:
    found = figures([Trace(0.0, [1.0], prompt_tokens=3, output_tokens=1)], asked_tokens=1)
    assert found["ttft_mean_s"] == 1.0
    absent = {"itl_mean_s", "tpot_mean_s", "decode_tok_s", "cached_tokens"}
    assert not absent & found.keys()


def test_events_of_one_read_have_no_decode_speed() -> None:
    found = figures([Trace(0.0, [1.0, 1.0], prompt_tokens=1, output_tokens=2)], asked_tokens=2)
    assert found["tpot_mean_s"] == 0
    assert "decode_tok_s" not in found


def test_an_answer_in_one_piece_has_no_latencies() -> None:
    found = figures([Trace(0.0, [2.0], 3, 8, 0, streamed=False)], asked_tokens=8)
    assert found["output_tok_s"] == 4
    assert not any("ttft" in name or "itl" in name or "tpot" in name for name in found)


def test_spread_over_repeats() -> None:
    repeats = [{"seconds": 3.0, "ok": 1.0}, {"seconds": 1.0, "ok": 1.0, "once": 5.0}, {"seconds": 2.5, "ok": 1.0}]
    assert summarise(repeats) == {"seconds": Spread(2.5, 1.0, 3.0), "ok": Spread(1.0, 1.0, 1.0)}
