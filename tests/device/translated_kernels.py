"""Translate kernels for a GPU to Triton's first intermediate form, without a GPU.

This finds errors that the interpreter accepts, such as a variable whose type changes in a loop.

    python -m tests.device.translated_kernels
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT, MARGINALS

SHAPES = {
    "projective_tree": (8, 51, 51),
    "spanning_tree": (8, 51, 51),
    "constituency_tree": (8, 50, 50),
    "linear_chain": (8, 50, 20, 20),
}
TYPES = {
    "scores": "*fp32",
    "lengths": "*i64",
    "along": "*fp32",
    "workspace": "*fp64",
    "log_partition": "*fp32",
    "result": "*fp32",
    "status": "*i8",
}


def sources() -> Iterator[tuple[str, Any, dict[str, int]]]:
    """Yield the name, source and number of threads of each kernel for each operation."""
    from triton.compiler import ASTSource

    for name, shape in SHAPES.items():
        module = import_module(f"spacy_latent.kernels.gpu.{name}")
        for operation in (BEST, MARGINALS, HESSIAN_PRODUCT):
            plan, derived = module.plan(shape, operation), operation == HESSIAN_PRODUCT
            kind = plan.kinds[0] if derived else plan.kinds[-1]
            constants = {"KIND": kind, "DERIVED": derived, **plan.constants}
            types = {key: TYPES.get(key, "i32") for key in plan.kernel.arg_names}
            types.update(dict.fromkeys(constants, "constexpr"))
            if operation == BEST:
                types["result"] = "*i32"
            source = ASTSource(fn=plan.kernel, signature=types, constexprs=constants)
            yield f"{name} {operation} {kind}", source, plan.threads


def main() -> None:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    for name, source, threads in sources():
        options = backend.parse_options(dict(threads))
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        made = backend.get_codegen_implementation(options), backend.get_module_map()
        module = source.make_ir(target, options, *made, context)
        assert "tt.func" in str(module), name
        print(name)


if __name__ == "__main__":
    main()
