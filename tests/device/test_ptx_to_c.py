"""What runs PTX on a CPU does what the instructions say, and finds each fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spacy_latent.kernels import ahead_of_time
from tests.device.emulated_gpu import COMPILER, Emulator, Fault, Launch
from tests.device.ptx_to_c import translate

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
# First item, workspace of two numbers a block, and an array of four numbers an item.
SIGNATURE = ["int64", "float64[2]", "float64[2]"]
HEAD = """.version 8.0
.target sm_75
.address_size 64
.visible .entry tried(
PARAMETERS
)
{
.reg .pred %p<9>;
.reg .b16 %rs<9>;
.reg .f32 %f<9>;
.reg .b32 %r<9>;
.reg .f64 %fd<9>;
.reg .b64 %rd<19>;
ld.param.u64 %rd1, [tried_param_5];
ld.param.u64 %rd2, [tried_param_14];
mov.u32 %r1, %tid.x;
cvt.u64.u32 %rd3, %r1;
mov.u32 %r2, %ctaid.x;
mul.lo.s32 %r2, %r2, 16;
cvt.u64.u32 %rd4, %r2;
add.s64 %rd1, %rd1, %rd4;
add.s64 %rd2, %rd2, %rd4;
add.s64 %rd2, %rd2, %rd4;
shl.b64 %rd5, %rd3, 3;
add.s64 %rd6, %rd1, %rd5;
add.s64 %rd7, %rd2, %rd5;
"""

Run = Callable[..., torch.Tensor]


@pytest.fixture()
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run lines between those of HEAD and the end, by two threads: %rd6 and %rd7 are the places of
    a thread's own number in the workspace and in the array. RETURNS: the array, ``(2, 4)``."""
    monkeypatch.setattr(ahead_of_time, "manifest", lambda: {"tried": {"arguments": SIGNATURE}})
    parameters = ",\n".join(f".param .u64 tried_param_{k}" for k in range(19))
    made = 0

    def run(lines: str, *numbers: float, without: int = 0) -> torch.Tensor:
        nonlocal made
        made += 1
        path = tmp_path / f"tried{made}.ptx"
        path.write_text(f"{HEAD.replace('PARAMETERS', parameters)}{lines}\nret;\n}}\n")
        array = torch.zeros((2, 4), dtype=torch.float64)
        array[:, : len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        room = torch.zeros((2, 2), dtype=torch.float64)
        emulator = Emulator(tmp_path)
        emulator.only, emulator.without = "tried", without
        packed = ahead_of_time.pack((0, room, array))
        emulator.run(path, Launch("tried", (2,), (2,), packed, 0, None))
        return array

    return run


def test_threads_hand_on_numbers_over_a_barrier(run: Run) -> None:
    lines = """
    ld.global.f64 %fd1, [%rd7];
    st.global.f64 [%rd6], %fd1;
    bar.sync 0;
    xor.b64 %rd8, %rd5, 8;
    add.s64 %rd8, %rd1, %rd8;
    ld.global.f64 %fd2, [%rd8];
    st.global.f64 [%rd7+16], %fd2;
    """
    assert run(lines, 3.0, 5.0).tolist() == [[3.0, 5.0, 5.0, 3.0]] * 2
    with pytest.raises(Fault, match="race in tried: array 0"):
        run(lines, 3.0, 5.0, without=1)


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        ("race in tried: array 1", "cvt.rn.f64.s64 %fd1, %rd3; st.global.f64 [%rd2], %fd1;"),
        ("out of bounds", "ld.global.f64 %fd1, [%rd7+64];"),
        ("out of bounds", "ld.global.f64 %fd1, [%rd7+-64];"),
        # In the middle of a number, and a half.
        ("out of bounds", "ld.global.f64 %fd1, [%rd7+4];"),
        ("out of bounds", "ld.global.f32 %f1, [%rd7];"),
        ("foreign in tried: array 1", "ld.global.f64 %fd1, [%rd7+24];"),
        ("foreign in tried: array 0", "ld.global.f64 %fd1, [%rd6+8];"),
        ("apart", "setp.eq.s32 %p1, %r1, 0; @%p1 bra $L__1; bar.sync 0; $L__1: ;"),
        ("division by zero", "mov.u64 %rd8, 0; div.s64 %rd8, %rd3, %rd8;"),
    ],
)
def test_each_fault_is_found(fault: str, lines: str, run: Run) -> None:
    with pytest.raises(Fault, match=fault):
        run(lines)


def test_an_endless_loop_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.device.emulated_gpu.MOST_STEPS", 1000)
    with pytest.raises(Fault, match="endless"):
        run("$L__1: ld.global.f64 %fd1, [%rd7]; bra.uni $L__1;")


def test_the_same_number_twice_is_no_race(run: Run) -> None:
    assert run("mov.f64 %fd1, 0d4000000000000000; st.global.f64 [%rd2], %fd1;")[0, 0] == 2.0


NAN, INFINITE = float("nan"), float("inf")


WHOLE = "cvt.rzi.s64.f64 %rd8, %fd1;"
FLOAT = "cvt.rn.f64.s64 %fd3, %rd8;"


@pytest.mark.parametrize(
    ("lines", "first", "second", "expected"),
    [
        ("fma.rn.f64 %fd3, %fd1, %fd2, %fd2;", 3.0, 0.5, 2.0),
        # Not the product rounded first.
        ("fma.rn.f64 %fd3, %fd1, %fd1, %fd2;", 1 + 2**-52, -1.0, 2**-51 + 2**-104),
        ("div.rn.f64 %fd3, %fd1, %fd2;", 1.0, 3.0, 1.0 / 3.0),
        ("neg.f64 %fd3, %fd1;", 1.5, 0.0, -1.5),
        ("add.f64 %fd3, %fd1, 0d3FF0000000000000;", 1.5, 0.0, 2.5),
        ("max.f64 %fd3, %fd1, %fd2;", NAN, 2.0, 2.0),
        ("setp.lt.f64 %p1, %fd1, %fd2; selp.f64 %fd3, %fd1, %fd2, %p1;", NAN, 2.0, 2.0),
        ("setp.geu.f64 %p1, %fd1, %fd2; selp.f64 %fd3, %fd2, %fd1, %p1;", NAN, 2.0, 2.0),
        ("setp.neu.f64 %p1, %fd1, %fd1; selp.f64 %fd3, %fd2, %fd1, %p1;", NAN, 2.0, 2.0),
        (f"{WHOLE} {FLOAT}", -2.7, 0.0, -2.0),
        (f"{WHOLE} {FLOAT}", INFINITE, 0.0, 2.0**63),
        ("cvt.rn.f32.f64 %f1, %fd1; cvt.f64.f32 %fd3, %f1;", 0.1, 0.0, float(np.float32(0.1))),
        (f"{WHOLE} shr.s64 %rd8, %rd8, 1; {FLOAT}", -7.0, 0.0, -4.0),
        (f"{WHOLE} shr.s64 %rd8, %rd8, 99; {FLOAT}", -7.0, 0.0, -1.0),
        (f"{WHOLE} rem.s64 %rd8, %rd8, 4; {FLOAT}", -7.0, 0.0, -3.0),
        ("mov.b64 {%r4, %r5}, %fd1; mov.b64 %fd3, {%r4, %r5};", 0.1, 0.0, 0.1),
        (
            "{ .reg .b32 %temp; mov.b64 {%temp, %r5}, %fd1; }"
            "mov.u32 %r4, 0; mov.b64 %fd3, {%r4, %r5};",
            *(1.5 + 2**-52, 0.0, 1.5),
        ),
        ("rcp.approx.ftz.f64 %fd3, %fd1;", 4.0, 0.0, 0.25),
        # Twenty bits of it.
        ("rcp.approx.ftz.f64 %fd3, %fd1;", 3.0, 0.0, 0x155555 / 2**22),
        ("rcp.approx.ftz.f64 %fd3, %fd1;", 1e-310, 0.0, INFINITE),
    ],
)
def test_instructions(lines: str, first: float, second: float, expected: float, run: Run) -> None:
    read = "ld.global.f64 %fd1, [%rd2]; ld.global.f64 %fd2, [%rd2+8];"
    found = run(f"{read} {lines} st.global.f64 [%rd7+16], %fd3;", first, second)
    assert found[0, 2] == expected


@pytest.mark.parametrize(
    "line",
    [
        "ex2.approx.f32 %f1, %f1;",
        "ld.shared.f64 %fd1, [%rd1];",
        "fma.rz.f64 %fd1, %fd1, %fd1, %fd1;",
        "bar.sync 1;",
        "@%p1 bar.sync 0;",
        "mul.hi.s64 %rd1, %rd1, %rd1;",
        "setp.equ.f64 %p1, %fd1, %fd1;",
        "mov.u32 %r1, %laneid;",
    ],
)
def test_what_is_not_known_is_refused(line: str) -> None:
    text = HEAD.replace("PARAMETERS", ", ".join(f".param .u64 tried_param_{k}" for k in range(19)))
    with pytest.raises(ValueError, match="not known"):
        translate(f"{text}{line} ret; }}")
