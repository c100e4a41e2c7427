"""Compilation of kernels by numba, and the cache of its results."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import spacy_latent
from spacy_latent.kernels.core import compilation
from spacy_latent.kernels.core.compilation import KEPT, NOT_READ, PREFIX, kernel

KERNELS = Path(spacy_latent.__file__).parent / "kernels"


def test_every_kernel_goes_through_the_decorator() -> None:
    """A kernel compiled by numba's own decorator would ignore changes of its helpers.

    Its floating-point flags would also depend on its first caller.
    """
    sources = {path: path.read_text(encoding="utf8") for path in KERNELS.glob("*/*.py")}
    decorated = sum(len(re.findall(r"^@kernel\b", text, re.M)) for text in sources.values())
    assert decorated > 250
    named = {
        path.name for path, text in sources.items() if re.search(r"\bnjit\(|@njit|@jit\(", text)
    }
    assert named == {"compilation.py"}
    package = [path for path in KERNELS.parent.rglob("*.py") if KERNELS not in path.parents]
    assert [path for path in package if re.search(r"\bnjit\b", path.read_text("utf8"))] == []


def test_a_kernel_that_is_compiled_first_is_right(tmp_path: Path) -> None:
    """The rounding in the exponential must not be reassociated, although its callers may be."""
    program = (
        "import torch\n"
        "from spacy_latent.structures.constituency_tree import ConstituencyTree\n"
        "scores = torch.zeros(1, 4, 4, dtype=torch.float64)\n"
        "print(ConstituencyTree().log_partition(scores, torch.tensor([4])).exp().item())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(ran.stdout) - 5.0) < 1e-12


def test_a_function_inside_of_another_is_refused() -> None:
    factor = 2.0
    with pytest.raises(TypeError, match="module"):

        @kernel
        def scaled(value):
            return factor * value


# ------------------------------------------------------------------------------------ what is kept

CALLER = """
from spacy_latent.kernels.core.compilation import kernel
from small.helper import step

@kernel
def total(count, value):
    for _ in range(count):
        value = step(value)
    return value
"""
HELPER = """
from spacy_latent.kernels.core.compilation import kernel

@kernel
def step(value):
    return value + {}
"""
CALL = """
from small.caller import total
print(total(3, 0.0), sum(total.stats.cache_hits.values()))
"""
# The first kernel comes from the cache. The second one calls it, and must be compiled.
LOADED_FIRST = """
import sys
from small.caller import total
print(total(3, 0.0), sum(total.stats.cache_hits.values()), "numba.np.arraymath" in sys.modules)
from small.later import doubled
print(doubled(3, 0.0))
"""
LATER = """
import numpy as np
from spacy_latent.kernels.core.compilation import kernel
from small.caller import total

@kernel
def doubled(count, value):
    return np.full(2, total(count, value)).sum()
"""
# Code that simulates a read-only file system. Root could write to files of any mode.
READ_ONLY = """
import os, sys
def refuse(event, arguments):
    flags = arguments[2] if event == "open" else os.O_CREAT
    changes = event in ("open", "os.mkdir", "os.rename", "os.utime", "os.remove")
    if changes and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if isinstance(arguments[0], (str, os.PathLike)):
            if os.fspath(arguments[0]).startswith({folders!r}):
                raise PermissionError(30, "Read-only file system", arguments[0])
sys.addaudithook(refuse)
"""


class Small:
    """A package of two files, one of which calls the other. ``kept`` caches machine code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "small"
        self.kept = folder / "kept"
        self.home = folder / "home"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        (self.folder / "caller.py").write_text(CALLER)
        self.add(1.0)

    def add(self, number: float) -> None:
        """Write the helper, which adds ``number``."""
        (self.folder / "helper.py").write_text(HELPER.format(number))

    def start(self, program: str = CALL, **environment: str) -> subprocess.Popen[str]:
        paths = [str(self.folder.parent), str(KERNELS.parents[1])]
        places = {"NUMBA_CACHE_DIR": str(self.kept), "HOME": str(self.home)}
        places["XDG_CACHE_HOME"] = str(self.home / ".cache")
        return subprocess.Popen(
            [sys.executable, "-B", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **places, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str = CALL, **environment: str) -> tuple[str, str]:
        """Return the output of the program: its results and cache hits, and its warnings."""
        process = self.start(program, **environment)
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        return output.strip(), errors

    @property
    def states(self) -> list[Path]:
        return list(self.kept.glob(f"*/{PREFIX}*"))

    @property
    def files(self) -> list[Path]:
        return [file for state in self.states for file in state.iterdir()]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def test_a_change_of_a_helper_in_another_file_arrives(small: Small) -> None:
    assert small.run() == ("3.0 0", "")
    assert small.run() == ("3.0 1", "")
    small.add(2.0)
    assert small.run() == ("6.0 0", "")
    # With the first version of the helper again, nothing is compiled.
    small.add(1.0)
    assert small.run() == ("3.0 1", "")


PAUSED = """
import gc
from numba.core import event
from small.caller import total
class Watch(event.Listener):
    def on_start(self, event):
        seen.add(gc.isenabled())
    on_end = on_start
gc.{}()
seen = set()
event.register("numba:run_pass", Watch())
try:
    total("three", 0.0)
except Exception as error:
    print(type(error).__name__, seen, gc.isenabled())
print(total(3, 0.0), seen, gc.isenabled())
"""


@pytest.mark.parametrize(("state", "enabled"), [("enable", True), ("disable", False)])
def test_the_garbage_collector_waits_for_a_compilation(
    small: Small, state: str, enabled: bool
) -> None:
    output, _ = small.run(PAUSED.format(state))
    assert output == f"TypingError {{False}} {enabled}\n3.0 {{False}} {enabled}"


OF_OTHERS = """
import gc
import spacy_latent.kernels.core.compilation
from numba import jit, njit, objmode

@njit
def lifted(x):
    with objmode(y="float64"):
        y = float(x)
    return y

@jit(forceobj=True, looplift=True)
def looped(count):
    total = [0]
    for _ in range(count):
        total[0] += 1
    return total[0]

print(lifted(1.0), looped(3), gc.isenabled())
"""


def test_functions_of_others_are_compiled_as_before(small: Small) -> None:
    assert (
        small.run("import warnings; warnings.simplefilter('ignore')" + OF_OTHERS)[0] == "1.0 3 True"
    )


def test_the_digest_is_of_the_folder_and_of_all_kernels(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = small.folder.parent / "kernels"
    (kernels / "simd").mkdir(parents=True)
    monkeypatch.setattr(compilation, "KERNELS", kernels)
    seen = set()
    for file in (small.folder / "helper.py", small.folder / "new.py", kernels / "simd" / "rows.py"):
        for code in ("a = 1", "a = 2"):
            file.write_text(code)
            seen.add(compilation._digest(small.folder))
    file.rename(file.with_name("renamed.py"))
    assert len(seen | {compilation._digest(small.folder)}) == 7
    assert compilation._digest(small.folder / "no sources") is None


@cache
def imports_of(path: Path) -> set[tuple[str, str]]:
    """Return the folders of kernels from which a file imports, and the imported names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom):
            # The digest does not see relative imports.
            assert not node.level, f"{path} has a relative import"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            parts = f"{node.module}.".split(".")
            found |= {(parts[2], alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(n.name.split(".")[2], "") for n in node.names if n.name.startswith(PACKAGE)}
    return found


PACKAGE = "spacy_latent.kernels"
FAMILIES = sorted(path.parent.name for path in KERNELS.glob("*/__init__.py"))


@cache
def imported(family: str) -> set[str]:
    folders = {folder for path in (KERNELS / family).glob("*.py") for folder, _ in imports_of(path)}
    return folders - {family}


@cache
def read_by(family: str) -> set[str]:
    """Return the families whose sources go into the machine code of this family."""
    direct = imported(family) - NOT_READ
    return {family}.union(*map(read_by, direct))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_folder_names_its_files(family: str) -> None:
    page = (KERNELS / family / "README.md").read_text(encoding="utf8")
    files = {path.name for path in (KERNELS / family).glob("*.py")} - {"__init__.py"}
    assert files == set(re.findall(r"`(\w+\.py)`", page)) & files


def test_folders_of_kernels_import_in_no_circle() -> None:
    assert imported("core") == set()
    order = tuple(
        TopologicalSorter({family: imported(family) for family in FAMILIES}).static_order()
    )
    assert set(order) == set(FAMILIES)


@pytest.mark.parametrize("edited", FAMILIES)
def test_an_edit_changes_the_digest_of_the_families_that_import_it(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compilation, "KERNELS", copy)
    before = {family: compilation._digest(copy / family) for family in FAMILIES}
    file = sorted((copy / edited).glob("*.py"))[-1]
    file.write_text(file.read_text(encoding="utf8") + "\n# edited\n", encoding="utf8")
    changed = {
        family for family in FAMILIES if compilation._digest(copy / family) != before[family]
    }
    assert changed == {family for family in FAMILIES if edited in read_by(family)}


def test_the_digest_is_of_the_sources_at_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family imported after a change may call functions that were imported before it."""
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compilation, "KERNELS", copy)
    compilation._first_read.cache_clear()
    compilation.digest.cache_clear()
    try:
        before = compilation._digest(copy / "chains")
        compilation.digest(copy / "simd")
        file = copy / "simd" / "vector.py"
        file.write_text(file.read_text(encoding="utf8") + "\n# edited\n", encoding="utf8")
        assert compilation.digest(copy / "chains") == before
        # The sources have changed, so nothing that is compiled now is kept.
        assert compilation._digest(copy / "chains") != before
    finally:
        compilation._first_read.cache_clear()
        compilation.digest.cache_clear()


def test_families_of_structures_are_compiled_apart() -> None:
    assert "chains" not in read_by("spans") | read_by("arborescences") | read_by("choices")
    assert "spans" not in read_by("chains") | read_by("arborescences") | read_by("alignments")
    assert "spans" in read_by("sparsemap") and "chains" in read_by("smoothed")


def test_no_kernel_reads_a_value_that_the_digest_leaves_out() -> None:
    for path in KERNELS.glob("*/*.py"):
        if path.parent.name in NOT_READ:
            continue
        outside = {name for folder, name in imports_of(path) if folder in NOT_READ}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.FunctionDef) and any(
                re.match(r"(kernel|implements)\b", ast.unparse(one)) for one in node.decorator_list
            ):
                names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                assert not names & outside, f"{path.name}: {node.name} reads {names & outside}"
    for family in NOT_READ:
        text = "".join(path.read_text(encoding="utf8") for path in (KERNELS / family).glob("*.py"))
        assert "core.compilation" not in text


def test_machine_code_is_loaded_without_registries_and_a_later_kernel_compiles(
    small: Small,
) -> None:
    """The import of numba's registries takes a third of the time of a first call."""
    (small.folder / "later.py").write_text(LATER)
    small.run()
    assert small.run(LOADED_FIRST)[0].split("\n") == ["3.0 1 False", "6.0"]


def test_without_a_place_that_can_be_written_it_works_and_warns(small: Small) -> None:
    refused = READ_ONLY.format(folders=(str(small.folder.parent),))
    result, errors = small.run(refused + CALL)
    assert result == "3.0 0"
    assert errors.count("LatentWarning") == 1 and "NUMBA_CACHE_DIR" in errors
    assert not small.kept.exists() and not (small.folder / "__pycache__").exists()


def test_a_user_without_a_home_keeps_nothing_in_the_working_directory(small: Small) -> None:
    """Another user may put files there, and the loading of a pickle executes code."""
    small.home.mkdir()
    program = f"import os; os.chdir({str(small.home)!r})"
    refused = READ_ONLY.format(folders=(str(small.folder),))
    nowhere = {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "~/.cache"}
    result, _ = small.run(program + refused + CALL, **nowhere)
    assert result == "3.0 0"
    assert not list(small.home.iterdir())


def test_what_is_kept_is_read_where_it_cannot_be_written(small: Small) -> None:
    """This happens if another user built the image than the one who runs it."""
    small.run()
    kept = {file: file.stat().st_mtime_ns for file in small.files}
    refused = READ_ONLY.format(folders=(str(small.kept),))
    assert small.run(refused + CALL) == ("3.0 1", "")
    # The code for other arguments is kept in the next folder of the list.
    other = refused + CALL.replace("0.0", "0")
    assert small.run(other) == ("3.0 0", "")
    assert small.run(other) == ("3.0 1", "")
    assert {file: file.stat().st_mtime_ns for file in small.files} == kept


def test_a_place_that_goes_missing_is_made_again(small: Small) -> None:
    program = "import shutil\nfrom small.caller import total\ntotal(3, 0)\n"
    assert small.run(program + f"shutil.rmtree({str(small.kept)!r})\n" + CALL) == ("3.0 0", "")
    assert small.run() == ("3.0 1", "")


def test_processes_that_compile_at_once(small: Small) -> None:
    """The processes compile for different arguments.

    numba's own cache may give the code of one process to another.
    """
    programs = [f"print(total(3, {value}))" for value in ("0.0", "1j")]
    start = "import time\nfrom small.caller import total\ntime.sleep(max(0, {} - time.time()))\n"
    start = start.format(time.time() + 2.0)
    started = [small.start(start + program) for program in programs * 2]
    outputs = [process.communicate() for process in started]
    assert outputs == [("3.0\n", ""), ("(3+1j)\n", "")] * 2
    both = "from small.caller import total\n" + "\n".join(programs)
    both += "\nprint(sum(total.stats.cache_hits.values()))"
    assert small.run(both) == ("3.0\n(3+1j)\n2", "")


def test_a_process_that_ends_while_it_writes(small: Small) -> None:
    ended = (
        "import os\nfrom pathlib import Path\nwrite = Path.write_bytes\n"
        "def end(path, content):\n    write(path, content[: len(content) // 2])\n    os._exit(9)\n"
        "Path.write_bytes = end\n"
    )
    process = small.start(ended + CALL)
    process.communicate()
    assert process.returncode == 9 and len(small.files) == 1
    assert small.run() == ("3.0 0", "")
    assert small.run() == ("3.0 1", "")


def test_a_file_that_is_cut_off_is_compiled_again(small: Small) -> None:
    small.run()
    for length in (0, 1000):
        for file in small.files:
            file.write_bytes(file.read_bytes()[:length])
        assert small.run() == ("3.0 0", "")
    assert small.run() == ("3.0 1", "")


def test_what_is_compiled_after_a_change_is_not_kept(small: Small) -> None:
    """The digest was taken before the change, and some modules may be read after it."""
    helper = small.folder / "helper.py"
    changed = (
        "from pathlib import Path\nimport small.helper\n"
        f"Path({str(helper)!r}).write_text({HELPER.format(5.0)!r})\n"
    )
    assert small.run(changed + CALL) == ("3.0 0", "")
    assert small.files == []
    assert small.run() == ("15.0 0", "")


def test_superseded_code_is_removed(small: Small) -> None:
    small.run()
    (state,) = small.states
    for number in range(KEPT + 3):
        other = state.with_name(f"{PREFIX}{number}")
        shutil.copytree(state, other)
        os.utime(other, (1000.0 + number, 1000.0 + number))
    small.add(2.0)
    assert small.run() == ("6.0 0", "")
    kept = {other.name for other in small.states}
    assert len(kept) == KEPT and state.name in kept
    assert f"{PREFIX}{KEPT + 2}" in kept and f"{PREFIX}0" not in kept


def test_without_compilation_functions_are_themselves(small: Small) -> None:
    program = "from small.caller import total\nprint(total(3, 0.0), type(total).__name__)"
    assert small.run(program, NUMBA_DISABLE_JIT="1") == ("3.0 function", "")


CHOOSING = """
from typing import NamedTuple
from spacy_latent.kernels.core.compilation import implements, kernel

class Sum(NamedTuple):
    step: float

class Largest(NamedTuple):
    least: float

def add(number, total, value):
    pass

@implements(add, Sum)
def add_to_sum(number, total, value):
    return total + number.step * value

@implements(add, Largest, forceinline=True)
def larger(number, total, value):
    return max(total, value, number.least)

@kernel
def total(number, count):
    result = 0.0
    for k in range(count):
        result = add(number, result, k)
    return result
"""


def test_a_loop_serves_several_numbers_and_is_kept_for_each(small: Small) -> None:
    (small.folder / "caller.py").write_text(CHOOSING)
    program = (
        "from small.caller import Largest, Sum, total\n"
        "print(total(Sum(2.0), 4), total(Largest(1.0), 4), sum(total.stats.cache_hits.values()))"
    )
    assert small.run(program) == ("12.0 3.0 0", "")
    assert small.run(program) == ("12.0 3.0 2", "")
