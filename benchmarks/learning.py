"""What configs learn: every config of a group trained with every seed, in a table.

    python -m benchmarks learning rationales --seeds 0 1 2 3 4
    python -m benchmarks learning systems --only rationale_fusedmax
    python -m benchmarks learning systems --seeds      # no run, the table alone
    python -m benchmarks learning listops --seeds 0 1 2 3 4 --gpu --minutes 9
    python -m benchmarks learning transformers --encoder path/to/encoder

Each run is a training in a process of its own, on one thread; its figures are those of the
checkpoint that is best on the development set, there, or on the test set where a group has one.
Runs are cells of a sweep (:mod:`spacy_latent.distributed.sweep`), so that the same line in another
terminal is one more worker, and whatever is killed is taken up by starting it again: a training
goes on from its last checkpoint. A run that is through is a line of JSON in RAW, one file for each
config, which are in the repository; what is there is not trained again while the config is the
same. The table is written from them, to the terminal and to the group's section of RESULTS.md, with
a drawing of its first figure. With --minutes no training goes on for longer than that in all; where
some are left the program ends with status 3, and the same line goes on with them. The corpora are
those of project.yml, made by its commands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import spacy
import torch
from spacy.util import load_config

from benchmarks import config_digest
from benchmarks.learning_plot import write_drawing
from benchmarks.learning_trial import time_noted
from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section
from spacy_latent.distributed.checkpoint import checkpoints_in
from spacy_latent.distributed.directories import locked, replace_file
from spacy_latent.distributed.sweep import Cell, Scores, sweep
from spacy_latent.errors import LatentError
from spacy_latent.pipeline.listops_assessment import MEASURES
from spacy_latent.pipeline.listops_record import key_of

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "training" / "learning"
Figures = dict[str, str]
Setting = str | float | bool | None


@dataclass(frozen=True)
class Entry:
    """One row. config: in configs/, without its ending. what: a note for it. listops: the folder of
    expressions on whose test set it is judged, by ``spacy_latent.cli.listops report``. model: which
    of those that training keeps; the last where there are no others to choose a better one by.
    tests: corpora whose scores take the place of those in training; all but the first one's with
    the name of its file before them, as "depth6 tag_prefix". settings: what is not as in the
    config, by its dotted name."""

    config: str
    what: str = ""
    listops: str | None = None
    model: str = "model-best"
    tests: tuple[str, ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()

    @property
    def is_control(self) -> bool:
        return "control" in self.what

    @property
    def name(self) -> str:
        """By which it is told from others of its config."""
        if not self.settings:
            return self.config
        return f"{self.config}, {self.what.removeprefix('control: ')}"

    @property
    def digest(self) -> str:
        own = digest_of(self.config)
        if not self.settings:
            return own
        return hashlib.sha256(f"{own} {json.dumps(self.settings)}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Group:
    """title: of the section. corpora: commands of project.yml that make them. figures: columns, and
    what their shares are called in the scores; empty where a model has no such score."""

    title: str
    corpora: tuple[str, ...]
    figures: Figures
    entries: tuple[Entry, ...]


DEMO, LISTOPS, ARBORESCENCE = "corpus/demo", "corpus/listops", "corpus/arborescence"
ACCURACY = {"accuracy": "cats_micro_f"}
# Groups of spacy_latent.analysis.groups_by_operator.
WITH_SUMS = ("with SM", "without SM")
# Measures of spacy_latent.analysis.tree_measures that do not ask which token of a list heads it.
WITHOUT_CONVENTION = ("undirected", "yields", "one arc")
NO_STRUCTURE = "control: no structure"
# What configs call the corpus by which a training is judged.
DEVELOPMENT = "paths.dev"
# What a scorer is without an encoder of the sentence before it.
NO_ENCODER: tuple[tuple[str, Setting], ...] = (
    ("components.latent_encoder.model.scorer.encoder", None),
)
# The demo without its first restriction.
FREE: tuple[tuple[str, Setting], ...] = (
    ("components.latent_textcat.model.structure.restricted.direction", "any"),
)
# All four operators, up to 100 tokens, the curriculum of flat lists first.
LISTOPS_ENTRIES = (
    Entry("listops_lstm", NO_STRUCTURE, LISTOPS),
    Entry("listops_spinn", "SPINN, given transitions: the composer with gold trees", LISTOPS),
    Entry("listops_score_function", "score function, projective", LISTOPS),
    Entry("listops_marginals_projective", "structured attention, projective", LISTOPS),
    Entry("listops_marginals", "structured attention, non-projective", LISTOPS),
    Entry("listops_sparsemap", "SparseMAP, projective", LISTOPS),
    Entry("listops_perturb_and_map", "perturb-and-parse, projective", LISTOPS),
    Entry("listops_straight_through", "straight-through, projective", LISTOPS),
    Entry("listops_spigot", "SPIGOT, projective", LISTOPS),
    Entry("listops_sparsemap_tree_lstm", "Tree-LSTM over SparseMAP's trees", LISTOPS),
    Entry("listops_reinforce_shift_reduce", "RL-SPINN", LISTOPS),
    Entry("listops_beam_straight_through", "shift-reduce, beam, straight-through", LISTOPS),
    Entry("listops_beam_merges", "merges, mixture of a beam: a beam tree cell", LISTOPS),
    Entry("listops_ppo_merges", "merges by PPO", LISTOPS),
    Entry("listops_ppo_merges_tree_lstm", "merges by PPO, Tree-LSTM as published", LISTOPS),
    Entry("listops_gumbel_tree_lstm", "Gumbel Tree-LSTM", LISTOPS),
)
# Rationales of sentence polarity by how the choice of words is learned.
ATTENTION_ENTRIES = (
    Entry("rationale_fusedmax", "fusedmax attention"),
    Entry("rationale_entmax", "1.5-entmax attention"),
    Entry("rationale_oscarmax", "oscarmax attention"),
    Entry("rationale_gumbel_softmax", "Gumbel-softmax"),
    Entry("rationale_gaussian_sparsemax", "Gaussian-sparsemax"),
    Entry("rationale_mixed_dirichlet", "mixed Dirichlet"),
)
ONE_WORD_ENTRIES = (
    Entry("rationale_dense_marginalization", "latent categorical, all words"),
    Entry("rationale_one_word", "latent categorical, sparse marginalization"),
    Entry("rationale_top_k_sparsemax", "latent categorical, top-k sparsemax"),
    Entry("rationale_sum_and_sample", "latent categorical, sum and sample"),
    Entry("rationale_reinmax", "latent categorical, ReinMax"),
    Entry("rationale_gumbel_rao", "latent categorical, Gumbel-Rao"),
    Entry("rationale_rebar", "latent categorical, REBAR"),
    Entry("rationale_relax", "latent categorical, RELAX"),
    Entry("rationale_moving_average", "latent categorical, score function, moving average"),
    Entry("rationale_learned_constant", "latent categorical, score function, trained constant"),
    Entry("rationale_network_baseline", "latent categorical, score function, network"),
)
FOUR_WORDS_ENTRIES = (
    Entry("rationale_simple", "four words, SIMPLE: samples, marginals backward"),
    Entry("rationale_adaptive_implicit_mle", "four words, adaptive I-MLE"),
    Entry("rationale_perturbed_mean", "four words, perturbed optimizer"),
    Entry("rationale_black_box", "four words, black-box differentiation"),
    Entry("rationale_released_words", "four words, I-MLE, no stop words at first"),
    Entry("rationale_total_budget", "at most four words, SparseMAP of a factor graph"),
)
ARGUMENTS = ("corpus/arguments/test.spacy",)
# Of texts like those of the training, then of others: products, and whole reviews.
POLARITY = (
    "corpus/sentiment/dev.spacy",
    "corpus/elsewhere/products.spacy",
    "corpus/elsewhere/reviews.spacy",
)
SENTIMENT_ENTRIES = (
    Entry("sentiment_baseline", NO_STRUCTURE),
    Entry("sentiment_attention", "control: heads without a tree"),
    Entry("sentiment_marginals", "structured attention, non-projective"),
    Entry("sentiment_projective", "structured attention, projective"),
    Entry("sentiment_constituency", "structured attention, constituents"),
    Entry("sentiment_chart", "Tree-LSTM over the chart of soft constituents, two epochs"),
    Entry("sentiment_segments", "structured attention, segments"),
    Entry("sentiment_perturb_and_parse", "perturb-and-parse"),
    Entry("sentiment_spigot", "SPIGOT"),
    Entry("sentiment_spigot_marginals", "SPIGOT with exponentiated gradient"),
    Entry("sentiment_gumbel_tree_lstm", "Gumbel Tree-LSTM"),
    Entry("sentiment_tags", "latent tags, smoothed dynamic program"),
    Entry("sentiment_tag_sequence", "latent tags, marginals"),
    Entry("sentiment_short_arcs", "score function, rewarded for short arcs"),
    Entry(
        "sentiment_constrained",
        "one of two labels by a constraint, SparseMAP, each tree's loss",
    ),
    Entry("sentiment_selection", "four words, SparseMAP"),
    Entry("sentiment_budget", "SparseMAP, two modifiers at most"),
)
DEPTHS = range(2, 7)
# A trained control: the trees of spaCy's own parser, in an encoder that begins as over the others.
STOCK_PARSER: tuple[tuple[str, Setting], ...] = (
    ("paths.parser", "training/given_trees_transition/model-best"),
    ("components.latent_parser.component", "parser"),
    ("initialize.after_init.path", "training/given_trees_parser/model-best"),
)


def over_trees(task: str) -> tuple[Entry, ...]:
    """Of polarity, entities or pairs: what is composed over trees of a parser, and its controls."""
    given = f"{task}_given_trees"
    estimator = "components.latent_encoder.model.estimator.trees"
    return (
        Entry(given, "the parser's trees"),
        Entry(f"{task}_started_trees", "the parser's trees, let go"),
        Entry(given, "control: spaCy's parser's trees", settings=STOCK_PARSER),
        *(
            Entry(given, f"control: {trees}", settings=((estimator, trees),))
            for trees in ("random", "right", "root")
        ),
        Entry(f"{task}_no_trees", "control: no parser, no arcs, the same weights"),
    )


def entities_of(corpus: str) -> tuple[Entry, ...]:
    """Over a pre-trained encoder, a third of the updates of the others; the first thousand
    sentences of the development set are those that count, since BC5CDR has 4,581."""
    folder, steps = f"corpus/{corpus.lower()}", 100
    settings: tuple[tuple[str, Setting], ...] = (
        ("paths.train", f"{folder}/train.spacy"),
        (DEVELOPMENT, f"{folder}/dev.spacy"),
        ("corpora.dev.limit", 1000),
        ("training.max_steps", steps),
        ("training.optimizer.learn_rate.total_steps", steps),
    )
    return (
        Entry("ner_transformer", f"{corpus}, {steps} updates", settings=settings),
        Entry(
            "ner_transformer_crf", f"{corpus}, crf_ner in place of ner and trees", settings=settings
        ),
        Entry("ner_transformer_baseline", f"{corpus}, {NO_STRUCTURE}", settings=settings),
    )


INFIX = ("corpus/infix/test.spacy", *(f"corpus/infix/depth{depth}.spacy" for depth in DEPTHS))
GROUPS = {
    "listops": Group(
        "Learning: ListOps with four operators",
        ("listops-data",),
        {
            **ACCURACY,
            **{name: name for name in WITH_SUMS},
            "spans F1": "brackets",
            "lists": "lists",
            "attachment": "attachment",
            "with gold trees": "gold",
        },
        LISTOPS_ENTRIES,
    ),
    "demo": Group(
        "Learning: the demo's trees",
        ("demo-data",),
        {
            **ACCURACY,
            "attachment": "attachment",
            "whole trees": "whole",
            "at depth 6": "whole depth6",
            "60 to 100 tokens": "whole long",
            "accuracy at depth 6": "accuracy depth6",
            **{name: name for name in WITHOUT_CONVENTION},
        },
        (
            Entry("demo", "score function", DEMO),
            Entry("demo_marginals", "marginals: no estimator follows", DEMO),
            Entry("demo_sparsemap_marginalization", "SparseMAP, each tree's own loss", DEMO),
            Entry("demo_straight_through", "straight-through", DEMO),
            Entry("demo_perturb_and_map", "perturb-and-MAP", DEMO),
            Entry("demo_implicit_mle", "I-MLE", DEMO),
            Entry("demo_spigot", "SPIGOT", DEMO),
            Entry("demo_gold_reward", "gold heads as the reward, free at once", DEMO),
            Entry("demo_spanning", "score function, non-projective", DEMO),
            Entry("demo_trace_score_function", "score function of traces, non-projective", DEMO),
            Entry("demo_independent", "control: a softmax for each word, no tree", DEMO),
            Entry("demo", "free from the start", DEMO, settings=FREE),
            Entry("demo_bilstm", "score function, BiLSTM in place of counters", DEMO),
            Entry("demo_stack", "score function, continuous stacks in place of counters", DEMO),
            Entry("demo_attention", "attention over earlier words, marginals", DEMO),
            Entry("demo_attention_score_function", "the same, score function", DEMO),
            Entry("demo_growing", "arcs that grow in place of the restriction", DEMO),
            Entry("demo_constituency", "brackets, score function", DEMO),
        ),
    ),
    "arborescence": Group(
        "Learning: ListOps without modular sums, by arborescences",
        ("arborescence-data",),
        {
            **ACCURACY,
            "edges": "edges",
            "edges without ]": "edges without ]",
            "attachment": "attachment",
            "whole trees": "whole",
            "with gold trees": "gold",
        },
        (
            Entry("listops_arborescence_lstm", NO_STRUCTURE, ARBORESCENCE),
            Entry(
                "listops_arborescence_independent",
                "control: a softmax for each word, no tree",
                ARBORESCENCE,
            ),
            Entry("listops_arborescence_score_function", "score function", ARBORESCENCE),
            Entry("listops_arborescence_trace", "score function of traces", ARBORESCENCE),
            Entry("listops_arborescence_trace_relax", "RELAX over traces", ARBORESCENCE),
            Entry("listops_arborescence_sparsemap", "SparseMAP marginalization", ARBORESCENCE),
            Entry(
                "listops_arborescence_trace_bilstm",
                "score function of traces, BiLSTM in place of counters",
                ARBORESCENCE,
            ),
        ),
    ),
    "arguments": Group(
        "Learning: how many arguments an operator has",
        ("listops-data", "arguments-data"),
        {"F1": "tag_macro_f", "accuracy": "tag_acc", "attachment": "latent_uas"},
        (
            Entry("arguments_chain", "control: each word on the one before", tests=ARGUMENTS),
            Entry("arguments_sparsemap", "SparseMAP, non-projective", tests=ARGUMENTS),
            Entry("arguments_budget", "the same, five modifiers at most", tests=ARGUMENTS),
            Entry("arguments_projective", "SparseMAP, projective, twice as long", tests=ARGUMENTS),
        ),
    ),
    "infix": Group(
        "Learning: from prefix to infix notation",
        ("infix-data",),
        {
            "before the first error": "tag_prefix",
            **{f"depth {depth}": f"depth{depth} tag_prefix" for depth in DEPTHS},
            "attachment": "latent_uas",
        },
        (
            Entry("infix_attention", "control: heads without a tree", tests=INFIX),
            Entry("infix_projective", "structured attention, projective", tests=INFIX),
            Entry("infix_counters", "SparseMAP, projective, counters", tests=INFIX),
        ),
    ),
    "systems": Group(
        "Learning: systems of the literature",
        (
            "listops-data",
            "sentiment-data",
            "ner-data",
            "pairs-snli-data",
            "pairs-alignment-data",
            "tree-data",
        ),
        {
            **ACCURACY,
            "spans F1": "brackets",
            "attachment": "attachment",
            "alignment F1": "latent_align_f",
            "entity F1": "ents_f",
            "of the parser": "dep_uas",
        },
        (
            *LISTOPS_ENTRIES,
            Entry("sentiment_baseline", NO_STRUCTURE),
            Entry("sentiment_marginals", "structured attention, non-projective"),
            Entry("sentiment_projective", "structured attention, projective"),
            Entry("sentiment_segments", "structured attention, segments"),
            Entry("sentiment_perturb_and_parse", "perturb-and-parse, graph convolution"),
            Entry("sentiment_spigot", "SPIGOT"),
            Entry("rationale_full_text", "control: all words"),
            Entry("rationale_fusedmax", "fusedmax attention"),
            Entry("rationale_oscarmax", "oscarmax attention"),
            Entry("rationale_learning_to_explain", "learning to explain, I-MLE"),
            Entry("rationale_hard_kuma", "HardKuma rationales"),
            Entry("rationale_one_word", "latent categorical, sparse marginalization"),
            Entry("pairs_snli_one_to_one", "structured alignment, SparseMAP matching"),
            Entry("pairs_snli_attention", "control: attention"),
            Entry("pairs_alignment_soft_dtw", "soft-DTW, quadratic", model="model-last"),
            Entry("ner_crf", "CRF tagger"),
            Entry("ner_crf_quadratic", "L2 tagger: quadratic smoothing"),
            Entry("ner_baseline", "control: spaCy's ner"),
            Entry("tree_ewt_spigot_parser", "syntax under a parser, SPIGOT"),
        ),
    ),
    "rationales": Group(
        "Learning: rationales of sentence polarity",
        ("sentiment-data",),
        {**ACCURACY, "words": "rationale_rate"},
        (
            Entry("rationale_full_text", "control: all words"),
            Entry("rationale_learning_to_explain"),
            Entry("rationale_k_of_n"),
            Entry("rationale_budget"),
            Entry("rationale_contiguous", "contiguous words, a chain of tags"),
            Entry("rationale_runs", "four words in two runs, I-MLE"),
            Entry("rationale_spectra", "four words, a chain in a factor graph: SPECTRA"),
            Entry("rationale_tags", "contiguous words, tags and bound transitions"),
            Entry("rationale_hard_kuma"),
            Entry("rationale_hard_concrete"),
            *ATTENTION_ENTRIES,
            *ONE_WORD_ENTRIES,
            *FOUR_WORDS_ENTRIES,
        ),
    ),
    "few_labels": Group(
        "Learning: sentence polarity with one label in twenty",
        ("few-labels-data",),
        ACCURACY,
        (
            Entry("few_labels_control", "control: the labelled sentences alone, all words summed"),
            Entry("few_labels_dense", "words of all sentences, all choices summed"),
            Entry("few_labels_sparse", "words of all sentences, sparse marginalization"),
            Entry("few_labels_score_function", "words of all sentences, score function"),
            Entry(
                "few_labels_category_control", "control: the labelled sentences, one of ten codes"
            ),
            Entry("few_labels_category", "one of ten codes, all summed"),
            Entry("few_labels_category_sparse", "one of ten codes, sparse marginalization"),
            Entry("few_labels_category_score_function", "one of ten codes, score function"),
            Entry("few_labels_bits", "a code of 16 bits, score function"),
        ),
    ),
    "aspects": Group(
        "Learning: scores of four aspects",
        ("aspects-data",),
        {
            "R²": "cats_r2",
            "words": "rationale_rate",
            "of them about an aspect": "rationale_p",
        },
        (
            Entry("aspects_implicit_mle", "ten words, I-MLE"),
            Entry("aspects_full_text", "control: all words"),
        ),
    ),
    "entities": Group(
        "Learning: entities of WNUT-17",
        ("ner-data",),
        {"F1": "ents_f", "calibration error": "ents_ece"},
        (
            Entry("ner_crf"),
            Entry("ner_marginals", "spaCy's ner over latent trees"),
            Entry("ner_baseline", "control: spaCy's ner"),
        ),
    ),
    "trees": Group(
        "Learning: supervised trees of UD English EWT",
        ("tree-data",),
        {"attachment": "latent_uas", "of the parser": "dep_uas"},
        (
            Entry("tree_ewt_supervised"),
            Entry("tree_ewt_perturbed", "perturbed loss: from best trees alone"),
            Entry("tree_ewt_counters", "counters"),
            Entry("tree_ewt_supervised", "no LSTM before the scorer", settings=NO_ENCODER),
            Entry("tree_ewt_counters", "counters, no LSTM before them", settings=NO_ENCODER),
            Entry("tree_ewt_parser"),
        ),
    ),
    "alignments": Group(
        "Learning: paraphrases and their alignments",
        ("pairs-alignment-data",),
        {**ACCURACY, "alignment F1": "latent_align_f"},
        (
            Entry("pairs_alignment_one_to_one", model="model-last"),
            Entry("pairs_alignment_monotone", model="model-last"),
            Entry("pairs_alignment_sinkhorn", "Sinkhorn matching", model="model-last"),
            Entry("pairs_alignment_soft_dtw", "soft-DTW, quadratic", model="model-last"),
            Entry(
                "pairs_alignment_fertility",
                "each word at most twice: a factor graph",
                model="model-last",
            ),
            Entry("pairs_alignment_attention", "control: attention", model="model-last"),
        ),
    ),
    "sentiment": Group(
        "Learning: sentence polarity over latent trees",
        ("sentiment-data", "elsewhere-data"),
        ACCURACY | {name: f"{name} cats_micro_f" for name in ("products", "reviews")},
        tuple(replace(entry, tests=POLARITY) for entry in SENTIMENT_ENTRIES),
    ),
    "spans": Group(
        "Learning: noun phrases of UD English EWT",
        ("nested-data",),
        {"F1": "spans_sc_f"},
        (Entry("nested_ewt"), Entry("nested_ewt_spancat", "control: spaCy's spancat")),
    ),
    "parsers": Group(
        "Learning: labelled parsers",
        ("parser-ewt-data", "parser-latin-data"),
        {"attachment": "dep_uas", "with labels": "dep_las"},
        (
            Entry("parser_ewt", "UD English EWT"),
            Entry("parser_ewt_transition", "UD English EWT, control: spaCy's parser"),
            Entry("parser_latin", "UD Latin CIRCSE"),
        ),
    ),
    "few_heads": Group(
        "Learning: a parser with one tree in ten",
        ("few-heads-data",),
        {"attachment": "dep_uas", "with labels": "dep_las"},
        (
            Entry("parser_ewt_few_control", "control: the sentences with trees alone"),
            Entry("parser_ewt_few", "words of all sentences, an autoencoder"),
            Entry("parser_ewt_few_bound", "words of all sentences, a bound with a learned prior"),
        ),
    ),
    "given_trees": Group(
        "Learning: sentence polarity over trees of a parser",
        ("parser-ewt-data", "given-trees-parser", "sentiment-data"),
        ACCURACY,
        (
            Entry("sentiment_given_trees", "the parser's trees"),
            Entry("sentiment_started_trees", "the parser's trees, let go"),
            *(
                Entry(
                    "sentiment_given_trees",
                    f"control: {trees}",
                    settings=(("components.latent_encoder.model.estimator.trees", trees),),
                )
                for trees in ("random", "right", "left", "balanced", "flat")
            ),
            Entry(
                "sentiment_given_trees", "control: spaCy's parser's trees", settings=STOCK_PARSER
            ),
            Entry("sentiment_no_trees", "control: no structure, an embedder of its own"),
        ),
    ),
    "given_trees_entities": Group(
        "Learning: entities over trees of a parser",
        ("parser-ewt-data", "given-trees-parser", "ner-data"),
        {"entity F1": "ents_f"},
        over_trees("ner"),
    ),
    "given_trees_pairs": Group(
        "Learning: entailment over trees of a parser",
        ("parser-ewt-data", "given-trees-parser", "pairs-snli-data"),
        ACCURACY,
        over_trees("pairs"),
    ),
    "transformers": Group(
        "Learning: over a pre-trained encoder",
        (
            "sentiment-data",
            "elsewhere-data",
            "ner-data",
            "bc5cdr-data",
            "uner-data",
            "tree-data",
            "pairs-snli-data",
            "parser-ewt-data",
        ),
        {
            "macro F1": "cats_score",
            **{name: f"{name} cats_score" for name in ("products", "reviews")},
            "entity F1": "ents_f",
            "attachment": "latent_uas",
            "of the parser": "dep_uas",
            "with labels": "dep_las",
        },
        (
            Entry("sentiment_transformer", tests=POLARITY),
            Entry("sentiment_transformer_baseline", NO_STRUCTURE, tests=POLARITY),
            Entry("ner_transformer"),
            Entry("ner_transformer_crf", "crf_ner in place of ner and trees"),
            Entry("ner_transformer_baseline", NO_STRUCTURE),
            *entities_of("BC5CDR"),
            *entities_of("UNER"),
            Entry("pairs_transformer"),
            Entry("pairs_transformer_baseline", NO_STRUCTURE),
            Entry("tree_transformer"),
            Entry("tree_transformer_baseline", NO_STRUCTURE),
            Entry("parser_ewt_transformer", "latent_parser"),
            Entry("parser_ewt_transformer_baseline", "control: spaCy's parser"),
        ),
    ),
}


def of_listops(metrics: dict[str, Any]) -> dict[str, float]:
    """The figures of the model, which are before those of the controls, on the first corpus; of the
    others accuracy and the measures of trees, as "whole depth6"."""
    scores: dict[str, float] = {ACCURACY["accuracy"]: metrics["accuracy"]}
    if "brackets" in metrics:
        scores["brackets"] = next(iter(metrics["brackets"].values()))
    elif "attachment" in metrics:
        scores["attachment"] = next(iter(metrics["attachment"].values()))["without ]"]
    if "edges" in metrics:
        edges = next(iter(metrics["edges"].values()))
        scores |= {"edges": edges["all tokens"], "edges without ]": edges["without ]"]}
    first, *others = metrics.get("corpora", {}).items() or [("", {})]
    part = first[1]
    for name, group in part.get("by_operator", {}).items():
        if name in WITH_SUMS:
            scores[name] = next(iter(group["models"].values()))["accuracy"][0]
    own = _of_all(part)
    if "gold" in own.get("accuracy_with", {}):
        scores["gold"] = own["accuracy_with"]["gold"][0]
    for name, corpus in ((None, part), *others):
        found = _of_all(corpus)
        told = {key_of(key, name): found[key][0] for key in MEASURES if key in found}
        scores = told | scores
    return scores


def _of_all(corpus: dict[str, Any]) -> dict[str, Any]:
    """The figures of the model on the expressions of any depth."""
    return next(iter(corpus.get("by_depth", {}).get("all", {}).get("models", {}).values()), {})


# ---------------------------------------------------------------- one run


class TimeIsUp(BaseException):
    """No error of a run, which a sweep would note as its end."""


@dataclass(frozen=True)
class Run:
    """runs: a directory for what is under way. raw: that of the raw results. gpu: train on the
    first one. end: when to leave it to another time, by ``time.monotonic()``. encoder: where the
    one lies that the config names, if it names one; by that no result is told from another."""

    entry: Entry
    seed: int
    runs: Path
    raw: Path
    gpu: bool = False
    end: float = math.inf
    encoder: Path | None = None

    @property
    def folder(self) -> Path:
        """With the config's digest: what was begun with another one is not gone on with."""
        name = f"{self.entry.config}-{self.seed}-{self.entry.digest}"
        if self.paths:
            # What began with one encoder cannot go on with another.
            name += "-" + hashlib.sha256(json.dumps(self.paths).encode()).hexdigest()[:8]
        return self.runs / name

    @property
    def paths(self) -> dict[str, str]:
        """What the config's ``[paths]`` are on this machine, where they are not as in it."""
        if self.encoder is None or not has_encoder(self.entry.config):
            return {}
        return {f"paths.{ENCODER}": str(self.encoder)}

    @property
    def path(self) -> Path:
        return self.raw / f"{self.entry.config}.jsonl"

    def row(self) -> dict[str, Any] | None:
        """The result, if there is one."""
        return rows_of(self.entry, self.raw).get(self.seed)

    def keep(self) -> dict[str, Any]:
        """The result, after which nothing of the run is needed. It is trained if it has to be."""
        found = self.row()
        if found is None:
            train(self)
            found = result_of(self)
            add(self.path, found)
        shutil.rmtree(self.folder, ignore_errors=True)
        return found

    def cell(self) -> Cell:
        told = {"config": self.entry.config, **dict(self.entry.settings)}
        return Cell(told, self.seed, {"system.seed": self.seed})


# What configs call the pre-trained encoder among their paths.
ENCODER = "encoder"


@cache
def has_encoder(config: str) -> bool:
    return ENCODER in load_config(ROOT / "configs" / f"{config}.cfg").get("paths", {})


@cache
def digest_of(config: str) -> str:
    return config_digest.digest_of(ROOT / "configs" / f"{config}.cfg")


@cache
def task_of(entry: Entry) -> str:
    """By what it is judged during training: the corpus that entries of one task share."""
    settings = dict(entry.settings)
    if DEVELOPMENT in settings:
        return str(settings[DEVELOPMENT])
    read_config = load_config(ROOT / "configs" / f"{entry.config}.cfg", interpolate=False)
    dev: str = read_config["paths"]["dev"]
    return dev


def rows_of(entry: Entry, raw: Path = RAW) -> dict[int, dict[str, Any]]:
    """Results of an entry as it is now, by seed; the last of each."""
    rows = read(raw / f"{entry.config}.jsonl")
    found = {row["seed"]: row for row in rows if row["digest"] == entry.digest}
    return dict(sorted(found.items()))


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def train(run: Run) -> None:
    """Into the folder of the run; nothing is done where it was trained before. Raises TimeIsUp."""
    trained = run.folder / "trained.json"
    if trained.exists():
        return
    left = run.end - time.monotonic()
    if left <= 0:
        raise TimeIsUp
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.learning_trial", str(os.getpid())]
    command += [f"configs/{run.entry.config}.cfg", str(run.folder), str(run.seed)]
    overrides = run.paths | dict(run.entry.settings)
    command += [json.dumps(overrides), "gpu" if run.gpu else "cpu"]
    start = time.perf_counter()
    given: dict[str, Any] = {"cwd": ROOT, "env": ENVIRONMENT}
    with (run.folder / "log.txt").open("ab") as log:
        try:
            limit = None if math.isinf(left) else left
            done = subprocess.run(command, **given, stdout=log, stderr=log, timeout=limit)
        except subprocess.TimeoutExpired:
            raise TimeIsUp from None
    if done.returncode:
        said = (run.folder / "log.txt").read_text(encoding="utf8", errors="replace")
        raise LatentError(f"{' '.join(command)} failed:\n{said[-4000:]}")
    replace_file(trained, json.dumps({"seconds": round(time.perf_counter() - start, 1)}))


def result_of(run: Run) -> dict[str, Any]:
    """steps: until the last evaluation. started: how often it was; what was killed went on from its
    last checkpoint. processor_seconds: of all that, but for the last seconds before it was killed.
    seconds: by the clock, of the last time."""
    folder, entry = run.folder, run.entry
    model = folder / entry.model
    scores = scores_of(model)
    if entry.listops is not None:
        metrics = folder / "metrics.json"
        report = [*(sys.executable, "-m", "spacy_latent.cli.listops", "report"), str(model)]
        report += [entry.listops, "--metrics", str(metrics)]
        done = subprocess.run(report, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode:
            raise LatentError(f"{' '.join(report)} failed:\n{done.stderr[-4000:]}")
        scores = of_listops(json.loads(metrics.read_text(encoding="utf8")))
    if entry.tests:
        scores = evaluated(model, entry.tests)
    clocks = time_noted(folder)
    return {
        "config": entry.config,
        **({"settings": dict(entry.settings)} if entry.settings else {}),
        **({"device": torch.cuda.get_device_name(0)} if run.gpu else {}),
        "digest": entry.digest,
        "seed": run.seed,
        "model": entry.model,
        "steps": max((step for step, _ in checkpoints_in(folder)), default=None),
        "scores": {key: value for key, value in scores.items() if isinstance(value, float)},
        "seconds": json.loads((folder / "trained.json").read_text())["seconds"],
        "processor_seconds": round(sum(clocks), 1),
        "started": len(clocks),
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }


def scores_of(model: Path) -> dict[str, Any]:
    """Scores of a trained pipeline on its dev split, as it knows them. spaCy has 0 for what a
    scorer says nothing of, as of structures that no component annotates; these are left out."""
    meta = json.loads((model / "meta.json").read_text(encoding="utf8"))
    components = load_config(model / "config.cfg", interpolate=False)["components"].values()
    annotates = [part["annotate"] != "none" for part in components if "annotate" in part]
    return {
        name: value
        for name, value in meta["performance"].items()
        if any(annotates) or not name.startswith(("latent_align", "latent_uas", "rationale_"))
    }


def evaluated(model: Path, corpora: Sequence[str]) -> dict[str, Any]:
    """Scores of a trained pipeline, by ``spacy latent scores``."""
    metrics = model.parent / "scores.json"
    command = [sys.executable, "-m", "spacy_latent", "scores", str(model), *corpora]
    command += ["--metrics", str(metrics)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise LatentError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    scores: dict[str, Any] = json.loads(metrics.read_text(encoding="utf8"))
    return scores


def work(runs: Iterable[Run]) -> list[str]:
    """Be a worker, until all runs are through. RETURNS: what to do about those that failed."""
    failed: dict[Run, str] = {}

    def keep(run: Run) -> Scores:
        try:
            scores: Scores = run.keep()["scores"]
        except Exception as error:
            failed[run] = f"{run.entry.config}, seed {run.seed}: {error}"
            raise
        return {"score": 0.0, **scores}

    # First what nobody is at, then what others were at: they may have died.
    for wait in (False, True):
        for run in runs:
            if run.row() is not None:
                shutil.rmtree(run.folder, ignore_errors=True)
                continue
            study = run.folder.with_name(f"{run.folder.name}.study")
            sweep([run.cell()], study, lambda cell, number, run=run: keep(run), wait=wait)
            if wait and run.row() is None:
                said = f"{run.entry.config}, seed {run.seed} failed before, or its result is gone"
                failed.setdefault(run, said)
                failed[run] += f"\nTo try again, remove {study}"
    return list(failed.values())


# ---------------------------------------------------------------- the table


def value_of(values: Sequence[float]) -> str:
    """In percent: each, and where there are several mean, least and most."""
    if not values:
        return ""
    shares = [100 * value for value in values]
    each = ", ".join(f"{share:.1f}" for share in shares)
    if len(shares) == 1:
        return each
    return f"{each}; mean {mean(shares):.1f} ({min(shares):.1f} to {max(shares):.1f})"


def values_of(group: Group, runs: dict[int, dict[str, Any]]) -> list[str]:
    """A cell for each figure of the group."""
    return [
        value_of([run["scores"][key] for run in runs.values() if key in run["scores"]])
        for key in group.figures.values()
    ]


def table(group: Group, found: dict[Entry, dict[int, dict[str, Any]]]) -> list[str]:
    columns = list(group.figures)
    lines = [
        f"| config | seeds | {' | '.join(columns)} | updates | minutes of a processor |",
        f"|---|---|{'---|' * len(columns)}---:|---:|",
    ]
    for entry, runs in found.items():
        if not runs:
            continue
        cells = values_of(group, runs)
        minutes = mean(run["processor_seconds"] for run in runs.values()) / 60
        seeds = ", ".join(map(str, runs))
        name = f"`{entry.config}`" + (f": {entry.what}" if entry.what else "")
        steps = sorted({row["steps"] for row in runs.values() if row["steps"] is not None})
        updates = " to ".join(f"{step:,}" for step in dict.fromkeys([*steps[:1], *steps[-1:]]))
        row = [name, seeds, *cells, updates, f"{minutes:.1f}"]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def measured(group: Group, raw: Path) -> dict[Entry, dict[int, dict[str, Any]]]:
    """What is there of all entries as they are now, by seed."""
    return {entry: rows_of(entry, raw) for entry in group.entries}


def plot(name: str, group: Group, found: dict[Entry, dict[int, dict[str, Any]]]) -> list[str]:
    """Lines that show a drawing of the group's first figure; none where fewer than two configs have
    it."""
    figure, key = next(iter(group.figures.items()))
    shares = {
        entry: [run["scores"][key] for run in runs.values() if key in run["scores"]]
        for entry, runs in found.items()
    }
    rows = {entry.name: values for entry, values in shares.items() if values}
    controls = {entry.name for entry in found if entry.is_control and entry.name in rows}
    if len(rows) < 2:
        return []
    tasks = {entry.name: task_of(entry) for entry in found}
    return [write_drawing(f"learning_{name}", group.title, figure, rows, controls, tasks), ""]


def heading(found: dict[Entry, dict[int, dict[str, Any]]]) -> str:
    rows = [row for runs in found.values() for row in runs.values()]
    dates = sorted({row["date"] for row in rows})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    made = [", ".join(sorted({row[name] for row in rows})) for name in ("torch", "spacy")]
    on = " and ".join(sorted({row.get("device", "one thread") for row in rows}))
    return f"{when}, torch {made[0]}, spaCy {made[1]}, {on}. Figures in percent."


# The status with which a program ends where runs are left for another time.
LEFT = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of :func:`trained`."""
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="where what is under way is kept")
    parser.add_argument("--raw", type=Path, default=RAW, help="where results are kept")
    parser.add_argument("--gpu", action="store_true", help="train on the first GPU")
    parser.add_argument("--minutes", type=float, default=math.inf, help="leave off after so long")
    parser.add_argument(
        "--encoder",
        type=directory,
        help="where the pre-trained encoder lies that configs name; else it is fetched by its name",
    )


def directory(path: str) -> Path:
    found = Path(path).expanduser().resolve()
    if not found.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is no directory")
    return found


def trained(
    wanted: Sequence[tuple[Group, Sequence[Entry]]], given: argparse.Namespace
) -> str | int | None:
    """Train what is not there yet, seed after seed, after the corpora of its group. RETURNS: what
    to end the program with, once it has written its tables."""
    folder, end = given.runs.resolve(), time.monotonic() + 60 * given.minutes
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(entry, seed, folder, given.raw, given.gpu, end, given.encoder)
        for seed in given.seeds
        for _, entries in wanted
        for entry in entries
    ]
    missing = {run.entry for run in runs if run.row() is None}
    corpora = [
        command for group, entries in wanted if missing & set(entries) for command in group.corpora
    ]
    # Not by two workers at once.
    with locked(folder / "corpora.lock"):
        for command in dict.fromkeys(corpora):
            project = [sys.executable, "-m", "spacy", "project", "run", command, str(ROOT)]
            subprocess.run(project, check=True)
    try:
        failed = work(runs)
    except TimeIsUp:
        print("Time is up. The same line goes on with what is left.", file=sys.stderr)
        return LEFT
    return "\n".join(failed) or None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--only", nargs="+", help="configs, without their ending")
    add_options(parser)
    given = parser.parse_args()
    group = GROUPS[given.group]
    entries = [entry for entry in group.entries if given.only is None or entry.config in given.only]
    ended = trained([(group, entries)], given)
    found = measured(group, given.raw)
    if not any(found.values()):
        sys.exit(ended or f"There are no results of {given.group} with the configs as they are.")
    lines = [heading(found), "", *plot(given.group, group, found), *table(group, found)]
    write_section(f"learning_{given.group}", group.title, lines)
    print("\n".join(lines))
    sys.exit(ended)


if __name__ == "__main__":
    main()
