"""Which steps the runner takes, and that it runs exactly the program it was given."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.step_plan import StepKey
from srtkit_plugin_graph_my_plugin import Options, srtkit_graph_runner

LIMITS = Limits(max_rows=20, max_tokens=128, max_context=128, page_size=16)
DESCRIPTOR = srtkit_graph_runner()


class Doubling(Program):
    """Doubles what stands in its buffer; `before` puts it there."""

    def __init__(self) -> None:
        self.given = torch.zeros(0)
        self.buffer = torch.zeros(16)
        self.ran: list[int] = []

    def before(self, key: StepKey) -> None:
        self.buffer[: len(self.given)] = self.given

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        self.ran.append(key.rows)
        return {"out": self.buffer[: key.rows] * 2}

    def cuts(self) -> frozenset[str]:
        return frozenset()


def make() -> GraphRunner:
    return DESCRIPTOR.build(
        GraphRunnerBuild(
            limits=LIMITS,
            platform=None,  # type: ignore[arg-type]  # this runner asks nothing of it
            device_index=0,
            options=DESCRIPTOR.options(),
        )
    )


@pytest.mark.parametrize(("most", "rows"), [(64, [1, 2, 4, 8, 16]), (8, [1, 2, 4, 8]), (1, [1])])
def test_keys_are_powers_of_two(most: int, rows: list[int]) -> None:
    keys = DESCRIPTOR.keys(LIMITS, "one_token", Options(max_rows=most))
    assert keys == [StepKey(n, n, 1) for n in rows]


@pytest.mark.parametrize(("level", "count"), [("never", 0), ("one_token", 5), ("uniform", 5), ("any", 5)])
def test_no_key_where_nothing_may_be_captured(level: CaptureLevel, count: int) -> None:
    assert len(DESCRIPTOR.keys(LIMITS, level, Options())) == count


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (StepKey(1, 1, 1), 1),
        (StepKey(5, 5, 1), 8),
        (StepKey(16, 16, 1), 16),
        (StepKey(17, 17, 1), None),
        (StepKey(2, 9, 0), None),
        (StepKey(2, 4, 2), None),
        (StepKey(2, 2, 1, flags=4), None),
    ],
)
def test_the_smallest_key_that_is_large_enough(wanted: StepKey, rows: int | None) -> None:
    keys = DESCRIPTOR.keys(LIMITS, "any", Options())
    assert DESCRIPTOR.fit(wanted, keys) == (None if rows is None else StepKey(rows, rows, 1))


def test_a_prepared_step_gives_what_the_program_gives() -> None:
    runner, program, key = make(), Doubling(), StepKey(4, 4, 1)
    runner.prepare(program, [key])
    for values in ([1.0, 2.0, 3.0], [5.0]):
        program.given = torch.tensor(values)
        out = runner.run(program, key)["out"]
        assert out[: len(values)].tolist() == [2 * value for value in values]


def test_outputs_of_the_step_before_stay_valid() -> None:
    runner, program, key = make(), Doubling(), StepKey(1, 1, 1)
    runner.prepare(program, [key])
    program.given = torch.tensor([1.0])
    first = runner.run(program, key)["out"]
    program.given = torch.tensor([7.0])
    runner.run(program, key)
    assert first.tolist() == [2.0]


def test_only_prepared_keys_run_also_after_close() -> None:
    runner, program, key = make(), Doubling(), StepKey(2, 2, 1)
    for _ in range(2):
        with pytest.raises(Unsupported, match="not prepared"):
            runner.run(program, key)
        runner.prepare(program, [key])
        assert runner.run(program, key)["out"].tolist() == [0.0, 0.0]
        runner.close()


def test_keys_are_prepared_largest_first_and_added() -> None:
    runner, program = make(), Doubling()
    small, large = StepKey(1, 1, 1), StepKey(8, 8, 1)
    runner.prepare(program, [small, large])
    runner.prepare(program, [StepKey(2, 2, 1)])
    assert program.ran == [8, 1, 2]
    assert runner.run(program, small)["out"].tolist() == [0.0]


def test_a_key_that_fails_is_named_and_none_is_added() -> None:
    runner, program = make(), Doubling()
    program.given = torch.zeros(17)  # longer than the buffer
    with pytest.raises(Unsupported, match="rows=4"):
        runner.prepare(program, [StepKey(4, 4, 1)])
    program.given = torch.zeros(0)
    with pytest.raises(Unsupported, match="not prepared"):
        runner.run(program, StepKey(4, 4, 1))
