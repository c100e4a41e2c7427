"""Figures of ``spacy latent calibrate --json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spacy_latent.analysis.judged_entities import JudgedEntities
    from spacy_latent.cli.calibration_results import EntityResult, ParseResult
    from spacy_latent.evaluation.covering_sets import Coverage


def parses_to_json(found: ParseResult) -> dict[str, Any]:
    """Return the figures of calibrated arcs, labels and trees, by the keys of the JSON."""
    from spacy_latent.analysis.calibration import entity_figures
    from spacy_latent.analysis.thresholds import apply_threshold

    made: dict[str, Any] = {"calibration": found.fitted.calibration.to_dict()}
    for fit in found.fitted.fits:
        made[fit.before.noun] = {
            "before": entity_figures(fit.before),
            "after": entity_figures(fit.after),
            "crossed": entity_figures(fit.crossed),
            "gain": {**vars(fit.gain), "kept": fit.kept},
            **groups_to_json(fit.after),
        }
    mapped = found.fitted.confidences
    made["confidence"] = {
        "gain": {**vars(mapped.gain), "kept": mapped.kept},
        "losses": mapped.losses,
    }
    made.update(coverage_to_json(found.fitted.covered, found.covered))
    if found.further:
        made["test"] = {noun: entity_figures(judged) for noun, judged in found.further.items()}
        made["test_groups"] = {
            noun: groups_to_json(judged) for noun, judged in found.further.items()
        }
    if found.chosen:
        made["least_probability"] = {noun: vars(one) for noun, one in found.chosen.items()}
        made["test_least_probability"] = {
            noun: vars(apply_threshold(judged, found.chosen[noun].threshold))
            for noun, judged in found.further.items()
            if noun in found.chosen
        }
    return made


def entities_to_json(result: EntityResult) -> dict[str, Any]:
    """Return the figures of calibrated entities or spans, by the keys of the JSON."""
    from spacy_latent.analysis.calibration import by_length, entity_figures
    from spacy_latent.analysis.thresholds import apply_threshold

    found, least, held_out = result.fitted, result.least, result.held_out
    made: dict[str, Any] = {
        "calibration": found.calibration.to_dict(),
        "losses": {**found.losses, **found.confidence_losses},
        "before": entity_figures(found.before),
        "after": entity_figures(found.after),
        "crossed": entity_figures(found.crossed),
        "gain": {**vars(found.gain), "kept": found.kept},
        "left_out": found.left_out,
        **groups_to_json(found.after),
    }
    if found.sets is not None:
        made["sets"] = {
            name: {**vars(entity_figures(judged)), "by_length": by_length(judged)}
            for name, judged in zip(("before", "after"), found.sets)
        }
    if found.set_sizes:
        made["set_size"] = sum(found.set_sizes) / len(found.set_sizes)
    made.update(coverage_to_json(found.covered, None if held_out is None else held_out.sets))
    if least is not None:
        made["min_confidence"] = vars(least)
    if held_out is not None:
        made["test"] = entity_figures(held_out.entities)
        made["test_groups"] = groups_to_json(held_out.entities)
        if least is not None:
            made["test_min_confidence"] = vars(apply_threshold(held_out.entities, least.threshold))
        if held_out.covered is not None:
            made["test_coverage"], made["test_texts"] = held_out.covered
            made["test_set_size"] = held_out.set_size
    return made


def coverage_to_json(fitted: Coverage | None, further: Coverage | None) -> dict[str, Any]:
    """Return the figures of sets on the calibration texts and, as ``test_``, on others."""
    made: dict[str, Any] = {}
    if fitted is not None:
        made["set_size"] = fitted.size
    if further is not None:
        made["test_coverage"], made["test_texts"] = further.share, further.texts
        made["test_set_size"] = further.size
    return made


def groups_to_json(found: JudgedEntities) -> dict[str, Any]:
    """Return the figures by label and, if predictions have lengths, by length."""
    from spacy_latent.analysis.calibration import by_label, by_length

    made: dict[str, Any] = {"by_label": by_label(found)}
    lengths = by_length(found)
    return {**made, "by_length": lengths} if lengths else made
