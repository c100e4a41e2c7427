"""Mistakes in the annotation of the training texts, and in settings that concern it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from spacy.language import Language
from spacy.pipeline import TextCategorizer
from spacy.training import Example

from spacy_latent.analysis.reference_check import is_annotated
from spacy_latent.annotations import annotated_labels, rejected_key
from spacy_latent.annotations.aligned_heads import counterparts
from spacy_latent.annotations.heads import known_heads
from spacy_latent.annotations.settings import cfg_of
from spacy_latent.errors import number_of
from spacy_latent.pipeline.diagnostic import Diagnostic, error, note, warning
from spacy_latent.pipeline.entity_evidence import EvidenceSettings
from spacy_latent.pipeline.evidence_survey import EvidenceSurvey, lost_by_augmenter
from spacy_latent.pipeline.training_settings import training_reader

# Prefix of the names, in any version, of the reader that keeps rejected spans.
LABELLED_CORPORA = "spacy-latent.LabelledCorpora."


def about_missing_labels(
    nlp: Language, examples: Sequence[Example], frozen: Container[str]
) -> Iterable[Diagnostic]:
    """Yield diagnostics about components that no example gives a label."""
    from spacy_latent.models.labelled_parser import word_objective_of
    from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer
    from spacy_latent.pipeline.latent_parser import LatentParser
    from spacy_latent.pipeline.tree_spancat import TreeSpanCategorizer

    for name, pipe in nlp.pipeline:
        if not isinstance(pipe, (CrfEntityRecognizer, LatentParser, TreeSpanCategorizer)):
            continue
        if not examples or name in frozen:
            continue
        if isinstance(pipe, LatentParser) and word_objective_of(pipe.model) is not None:
            # This parser also learns from words without labels.
            continue
        annotated = pipe.cfg.get("evidence") or any(
            is_annotated(nlp, name, one.reference)
            or pipe.cfg.get("incorrect_spans_key") in list(one.reference.spans)
            for one in examples
        )
        if not pipe.labels or not annotated:
            # Without labels the component never learns. If it has labels, texts that were not read
            # may be annotated.
            tell = warning if pipe.labels else error
            yield tell(
                "no-labels",
                f"{name}: no annotation that it could learn from in "
                f"{number_of(len(examples), 'text')}. Give texts with such annotation.",
            )


# Share of heads that may be lost because of different tokens. In English web text it is a few
# percent.
LOST = 0.25


def about_other_tokens(
    nlp: Language, examples: Sequence[Example], frozen: Container[str]
) -> Iterable[Diagnostic]:
    """Yield a diagnostic about heads that are lost, since the pipeline tokenizes differently."""
    learning = [name for name, pipe in nlp.pipeline if name not in frozen and _learns_heads(pipe)]
    if not learning:
        return
    given = kept = 0
    for example in examples:
        heads, _ = known_heads(example.reference)
        to_gold, to_own = counterparts(example)
        given += int((heads >= 0).sum())
        own = heads[to_gold[to_gold >= 0]]
        kept += int((to_own[own[own >= 0]] >= 0).sum())
    if given - kept > LOST * given:
        yield warning(
            "other-tokens",
            f"{', '.join(learning)}: {100 * (given - kept) / given:.0f} % of the annotated heads "
            f"in {number_of(len(examples), 'text')} are not learned, since the tokenizer of "
            f"{nlp.lang!r} divides the texts into other tokens than the annotation. Set nlp.lang "
            "and its tokenizer to match the treebank. If the treebank divides tokens into "
            "several words, convert it with --merge-subtokens.",
        )


def _learns_heads(pipe: object) -> bool:
    from spacy_latent.models.latent_tok2vec import latent_layer
    from spacy_latent.pipeline.latent_encoder import LatentEncoder
    from spacy_latent.pipeline.latent_parser import LatentParser

    if isinstance(pipe, LatentEncoder) and pipe.cfg["supervision"]:
        return latent_layer(pipe.model).structure.kind == "heads"
    return isinstance(pipe, LatentParser)


# Categories that a message names.
NAMED = 5


def about_categories(
    nlp: Language, examples: Sequence[Example], frozen: Container[str]
) -> Iterable[Diagnostic]:
    """Yield diagnostics about categories that have the same value in all examples.

    A classifier learns to give a category that is never 0 to every text.
    """
    texts = [cats for example in examples if (cats := example.reference.cats)]
    for name, pipe in nlp.pipeline:
        if not isinstance(pipe, TextCategorizer) or name in frozen or not texts:
            continue
        if pipe.cfg.get("score_range") is not None:
            continue
        # Constraints determine more about these labels than the texts do.
        tied = getattr(getattr(pipe, "constraints", None), "labels", ())
        labels = [label for label in pipe.labels if label not in tied]
        values = {label: {cats[label] for cats in texts if label in cats} for label in labels}
        # From a text with only wrong labels, latent_textcat learns that one of the others is right.
        teaches = pipe.support_missing_values and not pipe.model.attrs.get("multi_label")
        rejected = [cats for cats in texts if teaches and 1.0 not in cats.values()]
        untold = [label for label in labels if all(label in cats for cats in rejected)]
        never = [label for label in untold if 1.0 not in values[label]]
        always = [label for label, found in values.items() if found == {1.0}]
        if never:
            yield warning(
                "category-never",
                f"{name}: in {number_of(len(texts), 'text')} none has {_listed(never)}. Give "
                'some that have it, with 1.0 in "cats", or leave it out.',
            )
        if always and pipe.model.attrs.get("multi_label"):
            yield warning(
                "category-always",
                f"{name}: in {number_of(len(texts), 'text')} none is annotated as not having "
                f"{_listed(always)}, so it will be predicted for all. A category that is "
                'not in "cats" is unknown: write 0.0 for texts that do not have it.',
            )


def _listed(labels: Sequence[str]) -> str:
    more = f" or {len(labels) - NAMED} others" if len(labels) > NAMED else ""
    return f"the category {' or '.join(map(repr, labels[:NAMED]))}{more}"


def about_rejected_spans(
    nlp: Language, examples: Sequence[Example], frozen: Container[str]
) -> Iterable[Diagnostic]:
    """Yield diagnostics about groups of rejected spans that no component learns from.

    The groups are named by the examples, and by the reader in the config, since texts with rejected
    spans may come late in a corpus.
    """
    reader = training_reader(nlp)
    keys = {rejected_key(example.reference) for example in examples}
    if str(reader.get("@readers")).startswith(LABELLED_CORPORA):
        blocks = reader.get("corpora") or {}
        keys |= {one.get("incorrect_spans_key") for one in blocks.values() if isinstance(one, dict)}
    learning = [pipe for name, pipe in nlp.pipeline if name not in frozen]
    known = {cfg_of(pipe).get("incorrect_spans_key") for pipe in learning}
    for key in sorted(str(key) for key in keys - known - {None}):
        yield warning(
            "rejected-spans",
            f"The training corpus has rejected spans in doc.spans[{key!r}], and no trained "
            f"component reads them. Set incorrect_spans_key = {key!r} in the block of the "
            "component, or, for a component with a source, in the config of that pipeline.",
        )


# Scorers that ignore entities and spans with labels for which a text was not annotated.
OF_LABEL_SETS = ("spacy-latent.label_set_scorer.", "spacy-latent.entity_scorer.")


def about_incomplete_entities(nlp: Language, examples: Sequence[Example]) -> Iterable[Diagnostic]:
    """Yield diagnostics about incomplete annotation of entities and nested spans."""
    from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer
    from spacy_latent.pipeline.tree_spancat import TreeSpanCategorizer

    asked = any(annotated_labels(example.reference) is not None for example in examples)
    lost = lost_by_augmenter(nlp, examples)
    for name, pipe in nlp.pipeline:
        if isinstance(pipe, CrfEntityRecognizer):
            settings = EvidenceSettings.of_block(name, pipe.cfg["evidence"])
            for doubt in EvidenceSurvey.of(examples, settings).doubts(pipe.labels):
                yield warning("entity-evidence", f"{name}: {doubt}")
            found, expected = "entities", "spacy-latent.label_set_scorer.v1"
        elif isinstance(pipe, TreeSpanCategorizer):
            found = "spans"
            expected = f"spacy-latent.label_set_scorer.v1 with spans_key = {pipe.key!r}"
        else:
            continue
        if lost:
            yield warning("augmented-evidence", f"{name}: {lost}")
        block = nlp.config["components"].get(name, {}).get("scorer") or {}
        scorer = str(block.get("@scorers"))
        if asked and not scorer.startswith(OF_LABEL_SETS):
            yield note(
                "label-sets",
                f"{name}: training texts were annotated for only some labels. If evaluation "
                f"texts are, too, the scorer {scorer} counts {found} of other labels as wrong. "
                f"Set {expected}, or evaluate on texts that are annotated for all labels.",
            )
