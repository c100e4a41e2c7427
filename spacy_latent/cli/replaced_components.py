"""Components with which ``spacy latent init`` replaces spaCy's components."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spacy_latent.cli.config_blocks import (
    EMBEDDER,
    OWNERS,
    TEXTCATS,
    Block,
    check_there,
    embedder_of,
    estimator_block,
    exclusive_classes,
    has_latent,
    is_pretrained,
    rates,
    structure_block,
    tagged,
)
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Config

RATIONALE = "spacy-latent.RationaleTextCat.v1"
# Defaults of a rationale: k words, each with a weight of 1.
CHOICE, CHOOSING = "k-of-n", "sparsemap"
# Settings of rationale_released_words, among the two best rationales of benchmarks/RESULTS.md.
# They are written if the user names neither a structure nor an estimator.
WORDS = 4
MEASURED: Block = {
    "structure": {"@misc": "spacy-latent.KOfN.v1", "k": WORDS, "exactly": True},
    "estimator": {
        "@misc": "spacy-latent.ImplicitMLE.v1",
        "target_step": 1.0,
        "noise": "sum_of_gamma",
        "num_samples": 4,
        "k": WORDS,
    },
    "candidates": {
        "@misc": "spacy-latent.ReleasedCandidates.v1",
        "release_at": 200,
        "restricted": {
            "@misc": "spacy-latent.ContentWords.v1",
            "punctuation": False,
            "stop_words": False,
        },
        "free": {"@misc": "spacy-latent.ContentWords.v1", "punctuation": False, "stop_words": True},
    },
}
# Key in doc.spans of the words of a rationale.
SPANS = "rationale"
# The default embedder of the selector of a rationale. The selector may read the whole text.
SELECTOR: Block = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 2,
    "embed_size": 5000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}
TOO_SURE = (
    "Without calibration, its probabilities are too high. Calibrate it on annotated text that "
    "it was not trained on, with 'spacy latent calibrate'."
)


@dataclass(frozen=True)
class Replacement:
    """Component with annotated structures that replaces one of spaCy's components.

    Attributes:
        replaces: Factories of the old components; the first is the name that users ask for.
        keeps: Settings that both have with the same meaning.
        learns: The structure of the component, in words.
        settings: Settings of the new component that differ from its defaults.
        over_pretrained: Settings of its model over an encoder whose learning rate has to be small.
        hint: Message for users who put a latent structure under the old component, or "".
        note: Message for users who replace the old component, or "".
    """

    factory: str
    replaces: tuple[str, ...]
    keeps: tuple[str, ...]
    learns: str
    settings: Block = field(default_factory=dict)
    over_pretrained: Block = field(default_factory=dict)
    hint: str = ""
    note: str = ""

    @property
    def option(self) -> str:
        """Option of ``spacy latent init``."""
        return "--" + self.factory.replace("_", "-")


REPLACEMENTS = {
    made.factory: made
    for made in (
        Replacement(
            "crf_ner",
            ("ner", "beam_ner"),
            ("incorrect_spans_key", "scorer"),
            "a chain of tags",
            # Confidences are computed from the probabilities.
            settings={"annotate": "probabilities"},
            # These are the settings of configs/ner_transformer_crf.cfg. With the default, entities
            # are learned late.
            over_pretrained={"gain": 48.0},
            note=f"{TOO_SURE} It can also learn from incomplete annotation: only some labels in "
            "some texts, flags that say which labels a text has, a part of the entities, or "
            "sources that disagree. See its setting evidence, and the page 'Learn from "
            "incomplete annotation'.",
        ),
        Replacement(
            "latent_parser",
            ("parser", "beam_parser"),
            ("scorer",),
            "a labelled tree of each sentence",
            settings={"annotate": "probabilities"},
            # The value in configs/parser_ewt_transformer.cfg.
            over_pretrained={"scorer_learn_rate": 10.0},
            hint="The latent structure is in its encoder, and may differ from its parses. For a "
            "parser whose trees have probabilities, give --for parse instead.",
            note=TOO_SURE,
        ),
        Replacement(
            "tree_spancat",
            ("spancat", "spancat_singlelabel"),
            ("spans_key", "threshold", "scorer"),
            "a tree of spans over each sentence",
            settings={"annotate": "probabilities"},
            hint="The latent structure is in its encoder, and may differ from its spans. For "
            "spans that form a tree, give --for spans instead.",
            note=TOO_SURE,
        ),
    )
}


def with_replacement(config: Config, names: list[str], made: Replacement) -> Config:
    """Return a copy of a filled config in which a component is replaced.

    The new component has the name, the position and the embedder of the old one.

    Args:
        names: The components; empty for every component of that kind.
    """
    from spacy.language import Language

    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    pipeline: list[str] = changed["nlp"]["pipeline"]
    old = made.replaces[0]
    names = names or [name for name in pipeline if components[name].get("factory") in made.replaces]
    if not names:
        raise LatentError(
            f"None of {_kinds(components, pipeline)} is spaCy's {old}, which {made.factory} "
            f"replaces. Begin with 'spacy init config --pipeline {old}'."
        )
    defaults = Language.get_factory_meta(made.factory).default_config
    assert defaults is not None
    architecture = defaults["model"]["@architectures"]
    for name in names:
        check_there(components, pipeline, name)
        component = components[name]
        if component.get("factory") not in made.replaces:
            raise LatentError(
                f"{name} is {component.get('factory', 'taken from a trained pipeline')}; "
                f"{made.factory} replaces only {old}."
            )
        embedder = embedder_of(component)
        if embedder is None:
            raise LatentError(
                f"The model of {name} has no block 'tok2vec', which {made.factory} needs."
            )
        if has_latent(component["model"]):
            raise LatentError(
                f"{name} already has a latent structure. Begin with the config without it, "
                f"replace the component, and then add the structure to {made.factory}."
            )
        components[name] = {
            "factory": made.factory,
            **made.settings,
            **{key: component[key] for key in made.keeps if key in component},
            "model": {
                "@architectures": architecture,
                **(made.over_pretrained if is_pretrained(embedder) else {}),
                "tok2vec": dict(embedder),
            },
        }
    return changed


def _kinds(components: dict[str, Block], pipeline: list[str]) -> str:
    """Return the names of the components, with their factories if these differ from the names."""
    named = []
    for name in pipeline:
        kind = components[name].get("factory", "taken from a trained pipeline")
        named.append(name if kind == name else f"{name} ({kind})")
    return ", ".join(named) or "its components"


def hints(before: Config, after: Config) -> Iterator[str]:
    """Yield the notes and hints of :class:`Replacement` for the changed components."""
    for name, component in after["components"].items():
        old, factory = before["components"].get(name, {}), component.get("factory")
        for made in REPLACEMENTS.values():
            if made.note and factory == made.factory != old.get("factory"):
                yield f"{name} is a {factory}. {made.note}"
            if made.hint and factory in made.replaces and component != old:
                if has_latent(component["model"]):
                    yield f"{name} is spaCy's {factory}. {made.hint}"


def with_rationale(
    config: Config, names: list[str], structure: str | None = None, estimator: str | None = None
) -> Config:
    """Return a copy of a filled config whose text classifier reads only the words that it chose.

    Args:
        names: The components; empty for the only ``textcat`` or ``textcat_multilabel``. Its
            embedder becomes the embedder of the selector. A bag of words gets an embedder.
        structure, estimator: See :func:`~spacy_latent.cli.added_structures.with_structure`; None is
            KOfN and SparseMAP. If both are None, the settings are those that were most accurate.
    """
    changed = config.copy()
    components: dict[str, Block] = changed["components"]
    names = classifiers(changed, names, "give a rationale", no_rationale)
    layers = deepcopy(MEASURED)
    if structure or estimator:
        made_of = structure_block(structure or CHOICE, chooses=True)
        layers = {
            "structure": made_of,
            "estimator": estimator_block(estimator or CHOOSING, made_of, chooses=True),
        }
    for name in names:
        components[name] = rationale_component(components[name], layers)
    changed["training"]["score_weights"]["rationale_rate"] = 0.0
    return changed


def classifiers(
    config: Config, names: list[str], could: str, why_not: Callable[[str, Block], str | None]
) -> list[str]:
    """Return the text classifiers of spaCy's that are to be replaced.

    Args:
        names: Names that the user gave; empty for the only one.
        could: Verb and object of the replacement, for the message "Several components could ...".
        why_not: Function that returns the reason why a component cannot be replaced, or None.
    """
    components: dict[str, Block] = config["components"]
    pipeline: list[str] = config["nlp"]["pipeline"]
    able = [name for name in pipeline if components[name].get("factory") in TEXTCATS]
    if not names and len(able) > 1:
        options = ", ".join(f"--component {name}" for name in able)
        raise LatentError(f"Several components could {could}. Name one: {options}.")
    # A classifier of this package is refused by why_not, with a better message than the next one.
    ours = [name for name in pipeline if components[name].get("factory") in OWNERS[1:]]
    names = names or able or ours
    if not names:
        raise LatentError(
            f"None of {', '.join(pipeline) or 'its components'} is a {' or a '.join(TEXTCATS)}. "
            "Begin with 'spacy init config --pipeline textcat'."
        )
    for name in names:
        check_there(components, pipeline, name)
        if why := why_not(name, components[name]):
            raise LatentError(why)
    return names


def no_rationale(name: str, component: Block) -> str | None:
    """Return the reason why a component cannot become a rationale, or None."""
    factory, model = component.get("factory"), component.get("model", {})
    if str(model.get("@architectures")).startswith(RATIONALE.rpartition(".")[0]):
        return (
            f"{name} is a {factory} that already chooses words. Leave out --for rationale (or "
            "--rationale): --structure and --estimator change how it chooses."
        )
    return no_classifier(name, component, "a rationale")


def no_classifier(name: str, component: Block, wanted: str) -> str | None:
    """Return the reason why a component is not a text classifier of spaCy's, or None."""
    if component.get("factory") in TEXTCATS and not has_latent(component.get("model", {})):
        return None
    return (
        f"{name} is not spaCy's {' or '.join(TEXTCATS)}; {wanted} replaces only these. Begin "
        "with the config before it was changed."
    )


def rationale_component(component: Block, layers: dict[str, Block]) -> Block:
    """Return the block of a rationale classifier in place of a text classifier."""
    from spacy.util import registry

    from spacy_latent.layers.compatibility import compatible_layers

    structure = registry.resolve({"made": layers["structure"]})["made"]
    estimator = registry.resolve({"made": layers["estimator"]})["made"]
    which = TEXTCATS.index(component["factory"])
    selector = deepcopy(dict(embedder_of(component) or SELECTOR))
    return {
        "factory": OWNERS[1 + which],
        "threshold": component.get("threshold", 0.5 * which),
        "spans_key": SPANS,
        "scorer": {
            "@scorers": "spacy-latent.rationale_scorer.v1",
            "spans_key": SPANS,
            "cats_scorer": component.get(
                "scorer", {"@scorers": f"spacy.{TEXTCATS[which]}_scorer.v2"}
            ),
        },
        "model": {
            "@architectures": RATIONALE,
            "exclusive_classes": exclusive_classes(component),
            "tok2vec": selector,
            # An embedder of single words: the reader must not see words that were not chosen.
            "embed": deepcopy(EMBEDDER),
            **deepcopy(layers),
            "scorer": tagged(compatible_layers(structure, estimator)[0]),
            **rates(selector),
        },
    }
