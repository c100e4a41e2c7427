"""Records of figures, and their JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from spacy_latent.analysis.figures import (
    Chance,
    Figures,
    LayerFigures,
    OtherModels,
    ReferenceFigures,
    Relation,
    Score,
    TaskFigures,
    plain,
)


def layer() -> LayerFigures:
    return LayerFigures(
        component="encoder",
        structure="Some()",
        estimator="Some",
        scorer="Some",
        composer="Some",
        kind="heads",
        plural="trees",
        constraint="",
        spans=3,
    )


def test_a_name_that_is_none_is_an_error() -> None:
    """A misspelt name raises an error, and does not give NaN as a dictionary of figures would."""
    figures = layer()
    with pytest.raises(AttributeError):
        _ = figures.flat_shares  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Score(value=1.0, low=1.0, hihg=1.0)  # type: ignore[call-arg]
    assert math.isnan(figures.mean("depth"))


def test_the_json_has_what_is_known() -> None:
    figures = layer()
    assert list(plain(figures)) == [
        *("component", "structure", "estimator", "scorer", "composer", "kind", "plural"),
        *("constraint", "spans", "statistics", "random", "controls", "by_length", "trained"),
    ]
    assert plain(figures)["by_length"] == [None, 0] and plain(figures)["trained"] == {}
    relation = Relation("nsubj", 2, np.float64(0.5), 0, math.nan, "flat", 0.25)
    figures.reference = ReferenceFigures(
        "directed", "heads", 1, 2, {"encoder": {"directed": (0.5, 0.0, 1.0)}}, {}, [relation]
    )
    figures.others = OtherModels(["b"], [[1.0]], 1.0, math.inf)
    found = plain(Figures(1, 2, ["encoder"], TaskFigures(), {"encoder": figures}))
    json.dumps(found, allow_nan=False)
    part = found["components"]["encoder"]
    assert part["reference"]["rows"]["encoder"] == {"directed": [0.5, 0.0, 1.0]}
    assert part["reference"]["relations"][0]["control directed"] == 0.25
    assert part["reference"]["relations"][0]["undirected"] is None
    assert part["others"]["chance"] is None and part["others"]["alike"] is False
    assert list(found) == "docs tokens pipeline task components others trained".split()


def test_what_is_absent_has_no_key() -> None:
    assert plain(Score(0.5, 0.4, 0.6)) == {"value": 0.5, "low": 0.4, "high": 0.6}
    chance = plain(Score(0.5, 0.4, 0.6, Chance("yes", 0.5)))["chance"]
    assert chance == {"label": "yes", "share": 0.5}
