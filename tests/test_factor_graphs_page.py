"""The code of docs/factor_graphs.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from confection import Config

from spacy_latent.structures.budget_tree import BudgetTree

PAGE = Path(__file__).parent.parent / "docs" / "factor_graphs.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf8"), re.DOTALL)


def test_the_graph_of_the_page() -> None:
    page: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, page)
    mean = page["solution"].mean[0].detach().numpy()
    np.testing.assert_allclose(mean.sum(1), 1.0, atol=1e-6)
    assert page["solution"].residual <= 1e-6 and page["scores"].grad is not None
    # The best alignment without the constraints, and near it: the implication binds.
    scores = torch.eye(3, 4) * 3.0
    mean = page["graph"].sparsemap(scores).mean[0]
    assert mean[0, 0] <= mean[2, 3] + 1e-6 and mean[2, 3] > 0.1


def test_the_config_of_the_page() -> None:
    import spacy

    (text,) = blocks("ini")
    config = Config().from_str(text.replace("components.latent_encoder.model.", ""))
    structure = spacy.registry.resolve(config)["structure"]
    assert isinstance(structure, BudgetTree) and structure.projective
