"""PTX of a kernel as C, so that its very instructions run on a CPU.

Each thread of a block is a coroutine: it runs until the next barrier, where the next thread has its
turn, in any order. Every access to memory is looked up in the arrays that the kernel was given, see
``AT`` below. Whatever stops a real GPU, or gives it different results at different times, ends the
run and is reported: see :data:`FAULTS`.

As in the PTX ISA of CUDA 12; only the instructions that our kernels have. Others raise ValueError.
Approximate reciprocals are as exact as their instruction promises, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# By their numbers in C. A race: two threads, no barrier between them, one number, and one of them
# changes it. Foreign: what is another block's. Apart: threads that wait at different barriers, or
# end before others.
FAULTS = ("none", "race", "out of bounds", "foreign", "apart", "division by zero", "endless")
_C_TYPES = {
    "pred": "uint8_t",
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
}
_SPECIAL = {"%tid.x": "T->tid", "%ntid.x": "threads", "%ctaid.x": "block"}
_ORDERED = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# True where a number is NaN.
_UNORDERED = {"neu": "==", "geu": "<", "gtu": "<=", "leu": ">", "ltu": ">="}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}


class Translated(NamedTuple):
    """code: of C. name: of the kernel. parameters: how many; all have eight bytes. barriers: places
    at which threads wait."""

    code: str
    name: str
    parameters: int
    barriers: int


def translate(text: str) -> Translated:
    head = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)\s*\{", text)
    if head is None:
        raise ValueError("There is no kernel in it.")
    parameters = re.findall(r"\.param \.u64 (\w+)", head[2])
    if len(parameters) != head[2].count(".param"):
        raise ValueError("A parameter is not of eight bytes.")
    body = _Body({name: index for index, name in enumerate(parameters)})
    # Braces stand for scopes of registers, and for two halves of one.
    rest = text[head.end() : text.rindex("}")]
    rest = re.sub(r"\{(\s*%[^{}]*)\}", lambda match: f"<{match[1].replace(',', '|')}>", rest)
    for statement in re.sub(r"[{}]", "", rest).split(";"):
        body.add(" ".join(statement.split()))
    fields = " ".join(
        f"{_C_TYPES[kind]} {name}{'' if count is None else f'[{count}]'};"
        for name, (kind, count) in body.registers.items()
    )
    resume = " ".join(f"case {k + 1}: goto resume_{k + 1};" for k in range(body.barriers))
    code = _RUNTIME.replace("REGISTERS", fields).replace("RESUME", resume)
    code = code.replace("STATEMENTS", "\n".join(body.lines))
    return Translated(code, head[1], len(parameters), body.barriers)


class _Body:
    """Statements of a kernel, one after the other. registers: their types and, for those that are
    numbered, how many there are, by name."""

    def __init__(self, parameters: dict[str, int]) -> None:
        self.parameters = parameters
        self.registers: dict[str, tuple[str, int | None]] = {}
        self.lines: list[str] = []
        self.barriers = 0

    def add(self, statement: str) -> None:
        while label := re.match(r"\$(\w+): ?", statement):
            self.lines.append(f"{label[1]}: ;")
            statement = statement[label.end() :]
        if not statement or statement.startswith(".pragma"):
            return
        if declared := re.fullmatch(r"\.reg \.(\w+) %(\w+)(?:<(\d+)>)?", statement):
            name, count = declared[2], declared[3]
            self.registers[name] = (declared[1], int(count) if count else None)
            return
        condition = ""
        if guard := re.match(r"@(!?)(%\w+) ", statement):
            condition = f"if ({guard[1]}{self.register(guard[2])[0]}) "
            statement = statement[guard.end() :]
        operation, _, operands = statement.partition(" ")
        parts = operation.split(".")
        write = getattr(self, f"_{parts[0]}", None)
        if write is None:
            raise ValueError(f"This instruction is not known: {statement}")
        made = write(parts[1:], [operand.strip() for operand in operands.split(",")])
        _expect(not (condition and parts[0] == "bar"), "barrier", [condition, statement])
        self.lines.append(f"{condition}{{ {made} }}")

    # -------------------------------------------------------------------------------- operands

    def register(self, name: str) -> tuple[str, str]:
        """In C, and its type."""
        found = re.fullmatch(r"%([a-z]+)(\d*)", name)
        if found is None or found[1] not in self.registers:
            raise ValueError(f"This operand is not known: {name}")
        kind, count = self.registers[found[1]]
        return f"T->{found[1]}" + ("" if count is None else f"[{found[2]}]"), kind

    def read(self, operand: str, kind: str) -> str:
        """As a value of that type."""
        if operand in _SPECIAL:
            return f"(({_C_TYPES[kind]}){_SPECIAL[operand]})"
        if operand.startswith("%"):
            text, own = self.register(operand)
            return _as(text, own, kind)
        if exact := re.fullmatch(r"0([df])([0-9A-Fa-f]+)", operand):
            own = "f64" if exact[1] == "d" else "f32"
            return _as(f"0x{exact[2]}u{'ll' if own == 'f64' else ''}", f"b{own[1:]}", kind)
        if re.fullmatch(r"-?\d+", operand) and kind[0] != "f":
            # The lowest of all is no literal of C.
            return f"(({_C_TYPES[kind]}){int(operand) % 2**64}ull)"
        raise ValueError(f"This operand is not known: {operand}")

    def write(self, target: str, value: str, kind: str) -> str:
        text, own = self.register(target)
        return f"{text} = {_as(value, kind, own)};"

    def address(self, operand: str) -> str:
        found = re.fullmatch(r"\[(%\w+)(?:\+(-?\d+))?\]", operand)
        if found is None:
            raise ValueError(f"This address is not known: {operand}")
        return f"{self.read(found[1], 'u64')} + {int(found[2] or 0)}"

    # -------------------------------------------------------------------------------- control

    def _bra(self, parts: list[str], operands: list[str]) -> str:
        return f"goto {operands[0].removeprefix('$')};"

    def _ret(self, parts: list[str], operands: list[str]) -> str:
        return "T->ended = 1; return;"

    def _bar(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts == ["sync"] and operands == ["0"], "barrier", parts + operands)
        self.barriers += 1
        k = self.barriers
        return f"if (without != {k}) {{ T->place = {k}; return; }} }} resume_{k}: {{"

    # -------------------------------------------------------------------------------- memory

    def _ld(self, parts: list[str], operands: list[str]) -> str:
        kind = parts[-1]
        if parts[0] == "param":
            _expect(kind == "u64", "parameter", operands)
            index = self.parameters[operands[1].strip("[]")]
            return self.write(operands[0], f"parameters[{index}]", kind)
        _expect(parts[:-1] == ["global"], "memory", parts)
        value = f"*({_C_TYPES[kind]}*)AT({self.address(operands[1])}, sizeof({_C_TYPES[kind]}), 0)"
        return self.write(operands[0], value, kind)

    def _st(self, parts: list[str], operands: list[str]) -> str:
        kind = parts[-1]
        _expect(parts[:-1] == ["global"], "memory", parts)
        own = _C_TYPES[kind]
        place = f"AT({self.address(operands[0])}, sizeof value, &value)"
        return f"{own} value = {self.read(operands[1], kind)}; *({own}*){place} = value;"

    def _cvta(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts == ["to", "global", "u64"], "address", parts)
        return self.write(operands[0], self.read(operands[1], "u64"), "u64")

    # -------------------------------------------------------------------------------- numbers

    def _mov(self, parts: list[str], operands: list[str]) -> str:
        (kind,) = parts
        target, source = operands
        if target.startswith("<"):
            low, high = target[1:-1].split("|")
            value = f"uint64_t value = {self.read(source, 'b64')};"
            _expect(kind == "b64", "halves", parts)
            low = self.write(low.strip(), "(uint32_t)value", "b32")
            return f"{value} {low} {self.write(high.strip(), '(uint32_t)(value >> 32)', 'b32')}"
        if source.startswith("<"):
            _expect(kind == "b64", "halves", parts)
            low, high = (self.read(half.strip(), "b32") for half in source[1:-1].split("|"))
            return self.write(target, f"((uint64_t){low} | (uint64_t){high} << 32)", kind)
        return self.write(target, self.read(source, kind), kind)

    def _setp(self, parts: list[str], operands: list[str]) -> str:
        compared, kind = parts
        left, right = self.read(operands[1], kind), self.read(operands[2], kind)
        if compared in _UNORDERED and kind[0] == "f":
            value = f"!({left} {_UNORDERED[compared]} {right})"
            if compared == "neu":
                value = f"({left} != {right})"
        elif compared == "ne":
            # Of floats: neither is NaN.
            value = f"({left} < {right} || {left} > {right})"
        else:
            _expect(compared in _ORDERED, "comparison", parts)
            value = f"({left} {_ORDERED[compared]} {right})"
        return self.write(operands[0], value, "pred")

    def _selp(self, parts: list[str], operands: list[str]) -> str:
        (kind,) = parts
        chosen = self.register(operands[3])[0]
        value = f"({chosen} ? {self.read(operands[1], kind)} : {self.read(operands[2], kind)})"
        return self.write(operands[0], value, kind)

    def _cvt(self, parts: list[str], operands: list[str]) -> str:
        *rounding, to, of = parts
        value = self.read(operands[1], of)
        if (of[0] == "f") == (to[0] == "f"):
            _expect(rounding in ([], ["rn"]), "rounding", parts)
        elif of[0] == "f":
            _expect(rounding == ["rzi"] and (to, of) == ("s64", "f64"), "rounding", parts)
            value = f"toward_zero({value})"
        else:
            _expect(rounding == ["rn"], "rounding", parts)
        return self.write(operands[0], f"(({_C_TYPES[to]}){value})", to)

    def _two(self, parts: list[str], operands: list[str], value: str) -> str:
        """An operation with a value in C, of x and y, or of x."""
        kind = parts[-1]
        own = _C_TYPES[kind]
        given = [self.read(operand, kind) for operand in operands[1:]]
        named = " ".join(f"{own} {name} = {one};" for name, one in zip("xyz", given))
        return f"{named} {self.write(operands[0], f'(({own})({value}))', kind)}"

    def _add(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts[:-1] in ([], ["rn"]), "sum", parts)
        return self._two(parts, operands, "x + y")

    def _sub(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts[:-1] in ([], ["rn"]), "difference", parts)
        return self._two(parts, operands, "x - y")

    def _mul(self, parts: list[str], operands: list[str]) -> str:
        expected = [["lo"]] if parts[-1][0] != "f" else [[], ["rn"]]
        _expect(parts[:-1] in expected, "product", parts)
        return self._two(parts, operands, "x * y")

    def _fma(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts == ["rn", "f64"], "product and sum", parts)
        return self._two(parts, operands, "fma(x, y, z)")

    def _div(self, parts: list[str], operands: list[str]) -> str:
        if parts[-1][0] == "f":
            _expect(parts[:-1] == ["rn"], "quotient", parts)
            return self._two(parts, operands, "x / y")
        return self._two(parts, operands, "x / (y == 0 ? (STOP(5), 1) : y)")

    def _rem(self, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, "x % (y == 0 ? (STOP(5), 1) : y)")

    def _rcp(self, parts: list[str], operands: list[str]) -> str:
        _expect(parts == ["approx", "ftz", "f64"], "reciprocal", parts)
        return self._two(parts, operands, "reciprocal(x)")

    def _neg(self, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, "-x")

    def _abs(self, parts: list[str], operands: list[str]) -> str:
        value = "fabs(x)" if parts[-1][0] == "f" else "x < 0 ? -x : x"
        return self._two(parts, operands, value)

    def _max(self, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, "fmax(x, y)" if parts[-1][0] == "f" else "x > y ? x : y")

    def _min(self, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, "fmin(x, y)" if parts[-1][0] == "f" else "x < y ? x : y")

    def _shift(self, shifted: str, beyond: str) -> Callable[[list[str], list[str]], str]:
        def write(parts: list[str], operands: list[str]) -> str:
            kind = parts[-1]
            count = self.read(operands[2], "u32")
            value = f"count >= {kind[1:]} ? {beyond} : {shifted}"
            made = self._two(parts, operands[:2], value)
            return f"uint32_t count = {count}; {made}"

        return write

    def _shl(self, parts: list[str], operands: list[str]) -> str:
        return self._shift("x << count", "0")(parts, operands)

    def _shr(self, parts: list[str], operands: list[str]) -> str:
        beyond = "(x < 0 ? -1 : 0)" if parts[-1][0] == "s" else "0"
        return self._shift("x >> count", beyond)(parts, operands)

    def _bitwise(self, name: str, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, f"x {_BITWISE[name]} y")

    def _and(self, parts: list[str], operands: list[str]) -> str:
        return self._bitwise("and", parts, operands)

    def _or(self, parts: list[str], operands: list[str]) -> str:
        return self._bitwise("or", parts, operands)

    def _xor(self, parts: list[str], operands: list[str]) -> str:
        return self._bitwise("xor", parts, operands)

    def _not(self, parts: list[str], operands: list[str]) -> str:
        return self._two(parts, operands, "!x" if parts[-1] == "pred" else "~x")


def _expect(holds: bool, what: str, given: list[str]) -> None:
    if not holds:
        raise ValueError(f"This form of a {what} is not known: {' '.join(given)}")


def _as(text: str, own: str, kind: str) -> str:
    """A value as one of another type of the same bits, or of fewer or more for integers."""
    if own == kind:
        return text
    if "f" not in (own[0], kind[0]):
        return f"(({_C_TYPES[kind]}){text})"
    if own[1:] != kind[1:]:
        raise ValueError(f"{own} cannot be read as {kind}.")
    return f"{'as' if kind[0] == 'f' else 'bits'}{kind[1:]}({text})"


_RUNTIME = r"""
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t tid; int place, ended; REGISTERS } Thread;
/* An array that the kernel was given. row: bytes of what belongs to one block, whose first row is
   that of the block after the last launch's; width: of an element. seen: for each element, the
   barrier before which it was last written and last read, and by whom; -1 for several. */
typedef struct { uint64_t base, size, row, width, workspace; } Array;
typedef struct { int64_t written, read; int32_t writer, reader; } Seen;

static Array* arrays; static Seen** seen; static int count_of_arrays, block, threads, without;
static int64_t epoch, steps, limit, start; static int64_t* report; static jmp_buf end;

static void stop(Thread* T, int fault, int array, uint64_t place, int other) {
  report[0] = fault; report[1] = array; report[2] = place; report[3] = T->tid; report[4] = other;
  longjmp(end, 1);
}
#define STOP(fault) stop(T, fault, -1, 0, -1)
static float as32(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
static double as64(uint64_t x) { double y; memcpy(&y, &x, 8); return y; }
static uint32_t bits32(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
static uint64_t bits64(double x) { uint64_t y; memcpy(&y, &x, 8); return y; }
/* Of the fraction 20 bits, and subnormal numbers as 0. */
static double flushed(double x) { return fabs(x) < 0x1p-1022 ? copysign(0.0, x) : x; }
static double reciprocal(double x) {
  return as64(bits64(flushed(1.0 / flushed(x))) & 0xffffffff00000000ull);
}
static int64_t toward_zero(double x) {
  if (x != x) return INT64_MIN;
  return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}
static void* at(Thread* T, uint64_t address, uint64_t size, const void* value) {
  if (++steps > limit) stop(T, 6, -1, 0, -1);
  for (int i = 0; i < count_of_arrays; i++) {
    Array* a = &arrays[i];
    if (address < a->base || address + size > a->base + a->size) continue;
    uint64_t place = address - a->base, element = place / a->width;
    if (size != a->width || place % size) stop(T, 2, i, place, -1);
    uint64_t own = a->workspace ? block : start + block;
    if (place / a->row != own) stop(T, 3, i, element, -1);
    Seen* s = &seen[i][element];
    int me = T->tid;
    int changes = value && memcmp((void*)address, value, size);
    /* Whoever writes what is there already changes nothing for the others. */
    if (value && !changes) return (void*)address;
    if (s->written == epoch && s->writer != me) stop(T, 1, i, element, s->writer);
    if (changes && s->read == epoch && s->reader != me) stop(T, 1, i, element, s->reader);
    if (changes) { s->written = epoch; s->writer = me; }
    else if (s->read == epoch && s->reader != me) s->reader = -1;
    else { s->read = epoch; s->reader = me; }
    return (void*)address;
  }
  stop(T, 2, -1, address, -1);
  return 0;
}
#define AT(address, size, value) at(T, address, size, value)
static void run_thread(Thread* T, const uint64_t* parameters) {
  switch (T->place) { case 0: break; RESUME }
STATEMENTS
}
static uint64_t state;
static uint32_t draw(void) {
  state ^= state << 13; state ^= state >> 7; state ^= state << 17;
  return state >> 16;
}
/* left_out: the barrier at which no thread waits; 0 for none. report: the fault, its array, the
   element, the thread, the other thread, and how often the threads waited. */
void run(const uint64_t* parameters, int blocks, int threads_of_block, uint64_t seed, int left_out,
         int64_t most_steps, int count, Array* given, int64_t* result) {
  Thread* all = calloc(threads_of_block, sizeof(Thread));
  int* order = malloc(threads_of_block * sizeof(int));
  arrays = given; count_of_arrays = count; threads = threads_of_block; without = left_out;
  report = result; state = seed * 2 + 1; steps = 0; limit = most_steps; start = parameters[0];
  memset(report, 0, 6 * sizeof(int64_t)); epoch = 0;
  seen = calloc(count, sizeof(Seen*));
  for (int i = 0; i < count; i++)
    seen[i] = calloc(given[i].size / given[i].width + 1, sizeof(Seen));
  if (!setjmp(end)) for (block = 0; block < blocks; block++) {
    memset(all, 0, threads * sizeof(Thread));
    for (int t = 0; t < threads; t++) { all[t].tid = t; order[t] = t; }
    /* What nobody has written yet is NaN. */
    for (int i = 0; i < count; i++)
      if (given[i].workspace)
        memset((void*)(given[i].base + block * given[i].row), 0xff, given[i].row);
    for (;;) {
      epoch++;
      int ended = 0;
      for (int t = threads - 1; t > 0; t--) {
        int other = draw() % (t + 1), kept = order[t];
        order[t] = order[other]; order[other] = kept;
      }
      for (int t = 0; t < threads; t++) {
        run_thread(&all[order[t]], parameters);
        ended += all[order[t]].ended;
      }
      if (ended == threads) break;
      report[5]++;
      for (int t = 0; t < threads; t++)
        if (ended || all[t].place != all[0].place) stop(&all[t], 4, -1, 0, 0);
    }
  }
  for (int i = 0; i < count; i++) free(seen[i]);
  free(seen); free(all); free(order);
}
"""
