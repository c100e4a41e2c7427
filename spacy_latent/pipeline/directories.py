"""Directories in which pipelines are stored."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = "such as training/model-best"


def why_no_pipeline(model: str | Path) -> str:
    """Explain why an existing path is no pipeline, and list the pipelines in its subdirectories.

    Return "" for a pipeline, and for strings that are no path, such as names of packages. The empty
    string is no pipeline, even if the current folder has one.
    """
    if model == "":
        # A shell gives it for a variable that is not set, and Path takes it for the current folder.
        return f"It has no name. Give the directory of a trained pipeline, {EXAMPLE}."
    path = Path(model)
    if path.is_file():
        return f"It is a file. Give the directory of a trained pipeline, {EXAMPLE}."
    if not path.is_dir() or (path / "meta.json").is_file():
        return ""
    below = [file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/meta.json")]
    below.sort(key=lambda one: (one.name != "model-best", one))
    if not below:
        return f"It has no meta.json. Give a directory that 'spacy train' wrote, {EXAMPLE}."
    if len(below) == 1:
        return f"It has no meta.json. Give {below[0]}."
    more = f" and {len(below) - 3} more" if len(below) > 3 else ""
    some = ", ".join(map(str, below[:3]))
    return f"It has no meta.json. Give one of those below it: {some}{more}."
