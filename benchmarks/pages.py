"""The pages of ``benchmarks/results``, and the sections of each page."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("results")
# The title and the sections of each page. A name that ends in "*" stands for all sections with this
# prefix, because some programs write a section for each corpus.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "inference": (
        "Inference on a CPU",
        ("inference", "attention", "profile", "scaling", "footprint", "container"),
    ),
    "gpu": ("Inference and training on a GPU", ("gpu",)),
    "speed": (
        "Speed of pipelines",
        ("pipeline", "steps", "samples", "training", "ranks", "report"),
    ),
    "estimators": ("Estimators and settings", ("gradients", "ablations", "signal_game")),
    "entities": (
        "Entities",
        (
            "entity_curves",
            "entities_*",
            "learning_entities",
            "learning_tree_lstm_entities",
            "learning_losses",
            "entity_labels",
        ),
    ),
    "incomplete_annotation": (
        "Entities from incomplete annotation",
        (
            "learning_incomplete",
            "learning_incomplete_*",
            "added_label",
            "accept_reject",
            "label_models",
            "evidence",
        ),
    ),
    "calibration": (
        "Calibration of entities, spans and parses",
        ("calibration_*", "precision_promise_*"),
    ),
    "spans": ("Spans that nest", ("learning_spans", "spans_*")),
    "english": ("A pipeline for English", ("english", "learning_english")),
    "parsing": ("Parsing", ("learning_parsers", "parsing_*", "learning_few_heads")),
    "trees": (
        "Trees that are given or learned from gold",
        (
            "learning_trees",
            "learning_given_trees",
            "learning_given_trees_entities",
            "learning_given_trees_pairs",
        ),
    ),
    "listops": (
        "ListOps",
        (
            "learning_demo",
            "learning_listops",
            "learning_arborescence",
            "learning_arguments",
            "learning_infix",
        ),
    ),
    "sentiment": (
        "Sentence polarity",
        (
            "learning_sentiment",
            "learning_tree_lstm",
            "learning_tree_lstm_vectors",
            "learning_tree_lstm_all",
            "learning_tree_lstm_encoder",
            "learning_graph_convolution",
            "induced_trees",
            "learning_few_labels",
        ),
    ),
    "rationales": ("Rationales", ("learning_rationales", "learning_aspects", "explain")),
    "pairs": (
        "Pairs of texts",
        ("learning_alignments", "learning_tree_lstm_pairs", "learning_tree_lstm_pairs_encoder"),
    ),
    "systems": ("Systems of the literature", ("learning_systems",)),
    "encoders": ("Pre-trained encoders", ("learning_transformers",)),
}


def page_of(section: str) -> str:
    """Return the name of the page that has a section.

    Raises:
        LookupError: If no page has the section.
    """
    for page, (_, sections) in PAGES.items():
        if section in sections:
            return page
    for page, (_, sections) in PAGES.items():
        if any(name[-1] == "*" and section.startswith(name[:-1]) for name in sections):
            return page
    raise LookupError(f"No page has the section {section!r}: add it to PAGES in {__file__}.")


def markers(section: str) -> tuple[str, str]:
    """Return the comments that enclose a section on its page."""
    return f"<!-- {section}: begin -->", f"<!-- {section}: end -->"


def read_section(section: str, folder: Path = FOLDER) -> str:
    """Return the text of a section with its title.

    Raises:
        LookupError: If its page does not have it.
    """
    path = folder / f"{page_of(section)}.md"
    begin, end = markers(section)
    text = path.read_text(encoding="utf8") if path.exists() else ""
    if begin not in text:
        raise LookupError(f"{path} has no section {section!r}: run the program that writes it.")
    return text.partition(begin)[2].partition(end)[0].strip()
