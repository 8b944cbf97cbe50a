import itertools

import pytest
import torch

from ddltrain.bench.contenders import Call, Contender, choose, mpi
from ddltrain.bench.timing import Buffers, Case, cases_of, count_wrong, expected, inputs, time_cases
from ddltrain.comm.world import World
from ddltrain.errors import CommError


def cases(rivals: list[Contender], count: int, dtype: torch.dtype, op: str) -> list[Case]:
    own, shared = (Buffers(*(torch.zeros(count * 8, dtype=torch.uint8) for _ in range(2))) for _ in range(2))
    return cases_of(rivals, count, dtype, op, own, shared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_the_expected_result_is_that_of_all_inputs(dtype: torch.dtype, op: str) -> None:
    every = torch.stack([inputs(rank, 20000, torch.int64) for rank in range(5)])
    wanted = {"sum": every.sum(0), "min": every.amin(0), "max": every.amax(0)}[op]
    assert torch.equal(expected(5, 20000, dtype, op).to(torch.int64), wanted)
    assert len({tuple(one[:4096].tolist()) for one in every}) > 1  # ranks differ
    assert not torch.equal(wanted[:4096], wanted[4096:8192])  # and so do chunks


def test_averages() -> None:
    every = torch.stack([inputs(rank, 100, torch.float64) for rank in range(3)])
    assert torch.allclose(expected(3, 100, torch.float64, "avg"), every.mean(0))


def test_wrong_elements_are_counted() -> None:
    wanted = torch.tensor([1.0, 3.0, 0.0, 5.0])
    assert count_wrong(torch.tensor([1.0, 3.0000002, 0.0, 5.0]), wanted) == 0
    assert count_wrong(torch.tensor([1.0, 3.1, 1e-9, float("nan")]), wanted) == 3
    assert count_wrong(torch.tensor([1, 2]), torch.tensor([1, 3])) == 1


def test_a_contender_that_is_wrong_is_found_out(alone: World) -> None:
    def careless(source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)
        target[7] += 1
        source[3] += 0 if source is target else 1

    def setup(count: int, dtype: torch.dtype, op: str) -> Call:
        return careless

    rivals = [mpi(alone), Contender("careless", setup)]
    timed = time_cases(alone, cases(rivals, 100, torch.float32, "sum"), "sum", 1, 5)
    # Two checks each: out of place also finds the spoilt input.
    assert [(one.contender.name, one.in_place, one.errors) for one in timed] == [
        ("mpi", False, 0),
        ("mpi", True, 0),
        ("careless", False, 4),
        ("careless", True, 2),
    ]
    assert all(one.time_s > 0 for one in timed)


def test_what_a_contender_does_not_offer_is_left_out(alone: World) -> None:
    assert cases([mpi(alone)], 4, torch.bfloat16, "sum") == []
    assert cases([mpi(alone)], 4, torch.int32, "avg") == []
    assert len(cases([mpi(alone)], 4, torch.float32, "avg")) == 2


def test_every_round_gives_each_case_one_turn(alone: World) -> None:
    turns: list[str] = []

    def rival(name: str) -> Contender:
        def call(source: torch.Tensor, target: torch.Tensor) -> None:
            turns.append(name)
            torch.ones(1_000_000).sum().item()  # long enough not to be repeated much
            if source is not target:
                target.copy_(source)

        return Contender(name, lambda count, dtype, op: call)

    outside = [one for one in cases([rival("a"), rival("b")], 10, torch.float32, "sum") if not one.in_place]
    time_cases(alone, outside, "sum", 1, 5)
    assert sum(one != other for one, other in itertools.pairwise(turns)) >= 5


def test_names_of_algorithms() -> None:
    assert choose("all")[:4] == ["mpi", "gloo", "auto", "ring"]
    assert choose("ring/bf16, mpi,mpi") == ["ring/bf16", "mpi"]
    for wanted in ("", "rink", "mpi,rink", "gloo/bf16", "ring/int8"):
        with pytest.raises(CommError, match="there are mpi, gloo, auto, ring"):
            choose(wanted)


def test_a_narrow_wire_is_forgiven_its_rounding_and_carries_less() -> None:
    third = torch.tensor([1 / 3])
    assert count_wrong(third.bfloat16().float(), third) == 1
    assert count_wrong(third.bfloat16().float(), third, torch.bfloat16) == 0
    assert (
        Contender("a", lambda count, dtype, op: None, wire=torch.float16).wire_bytes(400, torch.float32)
        == 200
    )
    assert Contender("a", lambda count, dtype, op: None).wire_bytes(400, torch.float64) == 400
