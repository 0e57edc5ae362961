import pytest, torch
from plugins.attention_triton.tests.conftest import *
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target

@pytest.mark.parametrize("name", ["triton","torch"])
@pytest.mark.parametrize("changes", [{}, {"tree":True}, {"window":6}], ids=str)
def test_probe(device, tmp_path, changes, name):
    target = load_target(Subject("attention", name), suite_for("attention"), tmp_path)
    h = Harness(target)
    case = h.case(rows_of((40,4),(0,4)), leading=2, dtype="float32", **changes)
    step = Step(h.rig(case), case)
    step.batch.context[1] = step.batch.host_context[1] = 1
    res = step.run()
    out = res.out
    print(name, changes, "padding finite", bool(out[4:].isfinite().all()), "first ok", bool(out[:4].isfinite().all()))
    if hasattr(step, "planes"): pass
