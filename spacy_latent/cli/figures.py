"""Figures of an assessment, in the terminal and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.messages import msg
from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy_latent.evaluation.assessment import Assessment


def in_percent(value: float) -> str:
    """Format a share as a number of percent; one of no texts, which is NaN, is a dash."""
    # Adding 0 turns −0 into 0.
    return f"{round(100 * value, 1) + 0:.1f}" if math.isfinite(value) else "–"


def as_percent(value: float) -> str:
    """Format a share as :func:`in_percent` does, with the sign."""
    return f"{in_percent(value)} %" if math.isfinite(value) else in_percent(value)


def to_json(assessment: Assessment) -> dict[str, Any]:
    """Return the figures, with the verdicts of each layer under ``verdicts``."""
    from spacy_latent.analysis.figures import plain

    found = {
        name: [vars(verdict) for verdict in verdicts]
        for name, verdicts in assessment.verdicts.items()
    }
    return {**plain(assessment.figures), "verdicts": plain(found)}


def print_remarks(assessment: Assessment) -> None:
    """Print the remarks that users need before they read the figures."""
    from spacy_latent.analysis.remarks import remarks

    for said in remarks(assessment.figures):
        msg.warn(said)


def print_verdicts(assessment: Assessment) -> None:
    """Print the headline and the verdicts of each layer."""
    from spacy_latent.analysis.verdicts import headline

    show = {"warning": msg.warn, "good": msg.good, "note": msg.info}
    for name, found in assessment.verdicts.items():
        msg.divider(name)
        msg.text(headline(found, assessment.figures.components[name]), color="yellow")
        for verdict in found:
            show[verdict.level](verdict.text)


def print_confidence(assessment: Assessment) -> None:
    """Print the figures on the reliability of the probabilities of entities and arcs."""
    for name, found in assessment.figures.entities.items():
        if not found.found:
            continue
        msg.divider(f"{name}: confidence")
        show = msg.warn if found.error > found.chance_high else msg.info
        show(
            f"{number_of(found.found, found.noun)}, expected calibration error "
            f"{100 * found.error:.1f} % ({100 * found.chance:.1f} % by chance alone)"
        )
