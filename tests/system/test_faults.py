"""A few of the faults in `tests/faults.py`, as many as the suite has time for; all of them: `python tests/faults.py`."""

import os
from pathlib import Path

import faults
import pytest

QUICK = ("kill", "stop", "nan", "nan-skip", "differ", "disk")


@pytest.mark.parametrize(
    "case", [case for case in faults.CASES if case.name in QUICK], ids=lambda case: case.name
)
def test_a_fault_ends_in_order_on_this_host(case: faults.Case, digits: Path, tmp_path: Path) -> None:
    if case.wrapper and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    result = faults.run_case(case, 2, "host", digits, tmp_path)
    assert faults.problems(case, 2, "host", result) == [], result.output
