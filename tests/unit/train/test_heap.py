"""Memory that a step frees is there for the next one. In processes of their own: it cannot be undone."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from ddltrain.train.heap import keep_freed_memory

if {keeps}:
    keep_freed_memory()

def step():
    parts = [torch.zeros(count << 20, dtype=torch.uint8) for count in (100, 20, 1)]
    return sum(len(part) for part in parts)

for _ in range(5):  # until all blocks have found their places
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_page_faults(keeps: bool) -> int:
    """In three steps that write 121 MiB each, after some that did so before."""
    program = PROGRAM.format(keeps=keeps)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt belongs to glibc")
def test_steps_need_no_new_pages() -> None:
    assert num_page_faults(keeps=False) > 10_000  # else the test shows nothing
    assert num_page_faults(keeps=True) < 1000
