"""Configs that ``benchmarks learning`` trains, their controls, and the figures that judge them."""

from __future__ import annotations

from dataclasses import dataclass, replace

Figures = dict[str, str]
Setting = str | float | bool | dict[str, str] | None


@dataclass(frozen=True)
class Entry:
    """A config that is trained, which is a row of the table of its group.

    Attributes:
        config: name of the recipe.
        what: a note that the table shows.
        listops: folder of expressions on whose test set it is judged, by
            ``spacy_latent.cli.listops report``.
        model: name of the judged model. It is model-last if no development scores select another.
        tests: corpora whose scores replace the scores of the training. Scores of all corpora except
            the first one begin with the name of its file, such as "depth6 tag_prefix".
        settings: changed settings of the config, by their dotted names.
        control: name of the entry of the same group and task that this one is compared with.
        published: a figure of the literature, with its data and its source.
    """

    config: str
    what: str = ""
    listops: str | None = None
    model: str = "model-best"
    tests: tuple[str, ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    control: str = ""
    published: str = ""

    def __hash__(self) -> int:
        # Settings are left out, since a dictionary among them cannot be hashed.
        return hash((self.config, self.what))

    @property
    def is_control(self) -> bool:
        return "control" in self.what

    @property
    def name(self) -> str:
        """The name of the entry, which differs from the names of other entries with its config."""
        if not self.settings:
            return self.config
        return f"{self.config}, {self.what.removeprefix('control: ')}"


@dataclass(frozen=True)
class Group:
    """Entries whose figures are in one table.

    Attributes:
        title: title of the section of results.
        corpora: commands of project.yml that make the corpora.
        figures: the name of the score in each column, by the heading of the column. A cell is empty
            if an entry has no such score.
        entries: the rows.
    """

    title: str
    corpora: tuple[str, ...]
    figures: Figures
    entries: tuple[Entry, ...]


DEMO, LISTOPS, ARBORESCENCE = "corpus/demo", "corpus/listops", "corpus/arborescence"
ACCURACY = {"accuracy": "cats_micro_f"}
# Train until patience is exhausted, with the settings of the configs of `spacy init config`.
AS_LONG_AS_IT_GAINS: tuple[tuple[str, Setting], ...] = (
    ("training.max_steps", 20_000),
    ("training.eval_frequency", 200),
    ("training.patience", 1600),
)
# Groups of spacy_latent.listops.groups.groups_by_operator.
WITH_SUMS = ("with SM", "without SM")
# Measures of spacy_latent.analysis.tree_measures that do not depend on the head token of a list.
WITHOUT_CONVENTION = ("undirected", "yields", "one arc")
NO_STRUCTURE = "control: no structure"
# Name of the path of the development corpus in configs.
DEVELOPMENT = "paths.dev"
# Settings that remove the sentence encoder from a scorer.
NO_ENCODER: tuple[tuple[str, Setting], ...] = (
    ("components.latent_encoder.model.scorer.encoder", None),
)
# Settings that make an alignment uniform: each word is compared with the mean of the other text.
NO_ALIGNMENT: tuple[tuple[str, Setting], ...] = (
    ("components.latent_textcat.model.temperature", 1e6),
)
EVEN_ALIGNMENT = "control: no alignment"
# Settings of the demo without the restriction of its first stage.
FREE: tuple[tuple[str, Setting], ...] = (
    ("components.latent_textcat.model.structure.restricted.direction", "any"),
)
# ListOps with all four operators and up to 100 tokens. The curriculum begins with flat lists.
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
    Entry("listops_reinforce_all_along", "RL-SPINN, no trees given at the start", LISTOPS),
    Entry("listops_beam_straight_through", "shift-reduce, beam, straight-through", LISTOPS),
    Entry("listops_beam_merges", "merges, mixture of a beam: a beam tree cell", LISTOPS),
    Entry("listops_ppo_merges", "merges by PPO", LISTOPS),
    Entry("listops_ppo_merges_tree_lstm", "merges by PPO, Tree-LSTM as published", LISTOPS),
    Entry("listops_gumbel_tree_lstm", "Gumbel Tree-LSTM", LISTOPS),
)
# Rationales of sentence polarity, with different ways to learn the choice of words.
ATTENTION_ENTRIES = (
    Entry("rationale_constrained_sparsemax", "sparsemax attention, at most a quarter for a word"),
    Entry("rationale_fusedmax", "fusedmax attention"),
    Entry("rationale_entmax", "1.5-entmax attention"),
    Entry("rationale_oscarmax", "oscarmax attention"),
    Entry("rationale_sparsemax", "sparsemax attention"),
    Entry("rationale_gumbel_softmax", "Gumbel-softmax"),
    Entry("rationale_straight_through_gumbel", "straight-through Gumbel-softmax"),
    Entry("rationale_gaussian_sparsemax", "Gaussian-sparsemax"),
    Entry("rationale_mixed_dirichlet", "mixed Dirichlet"),
)
ONE_WORD_ENTRIES = (
    Entry("rationale_dense_marginalization", "latent categorical, all words"),
    Entry("rationale_one_word", "latent categorical, sparse marginalization"),
    Entry("rationale_marginal_likelihood", "latent categorical, marginal likelihood"),
    Entry("rationale_top_k_sparsemax", "latent categorical, top-k sparsemax"),
    Entry("rationale_sum_and_sample", "latent categorical, sum and sample"),
    Entry("rationale_reinmax", "latent categorical, ReinMax"),
    Entry("rationale_gumbel_rao", "latent categorical, Gumbel-Rao"),
    Entry("rationale_rebar", "latent categorical, REBAR"),
    Entry("rationale_rebar_learned", "latent categorical, REBAR, strength and temperature learned"),
    Entry("rationale_relax", "latent categorical, RELAX"),
    Entry("rationale_moving_average", "latent categorical, score function, moving average"),
    Entry("rationale_learned_constant", "latent categorical, score function, trained constant"),
    Entry("rationale_network_baseline", "latent categorical, score function, network"),
    Entry(
        "rationale_optimal_coefficient",
        "latent categorical, score function, self-critical with its optimal coefficient",
    ),
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
# The first corpus is like the training texts. The others are texts on products, and whole reviews.
POLARITY = (
    "corpus/sentiment/dev.spacy",
    "corpus/elsewhere/products.spacy",
    "corpus/elsewhere/reviews.spacy",
)
PROJECTED_STEP: tuple[tuple[str, Setting], ...] = (
    ("components.latent_encoder.model.estimator.step", "projected"),
)
SENTIMENT_ENTRIES = (
    Entry("sentiment_baseline", NO_STRUCTURE),
    Entry("sentiment_attention", "control: heads without a tree"),
    Entry("sentiment_marginals", "structured attention, non-projective"),
    Entry("sentiment_projective", "structured attention, projective"),
    Entry("sentiment_constituency", "structured attention, constituents"),
    Entry("sentiment_chart", "Tree-LSTM over the chart of soft constituents, two epochs"),
    Entry("sentiment_segments", "structured attention, segments"),
    Entry("sentiment_stochastic_softmax", "relaxed samples, marginals of noisy scores"),
    Entry("sentiment_straight_through", "straight-through, identity"),
    Entry("sentiment_perturb_and_map", "perturb-and-MAP, identity"),
    Entry("sentiment_perturb_and_parse", "perturb-and-parse"),
    Entry("sentiment_spigot", "SPIGOT"),
    Entry("sentiment_spigot_relaxed", "SPIGOT, a simplex for each head, bound norms"),
    Entry("sentiment_spigot_graph", "SPIGOT over a semantic graph"),
    Entry("sentiment_spigot_marginals", "SPIGOT-EG, the best tree forward"),
    Entry(
        "sentiment_spigot_marginals", "SPIGOT-CE, the best tree forward", settings=PROJECTED_STEP
    ),
    Entry("sentiment_spigot_ce", "SPIGOT-CE, the mean forward"),
    Entry("sentiment_gumbel_tree_lstm", "Gumbel Tree-LSTM"),
    Entry("sentiment_tags", "latent tags, smoothed dynamic program"),
    Entry("sentiment_tags_entropic", "latent tags, entropic smoothing"),
    Entry("sentiment_tags_perturbed", "latent tags, noise before a smoothed dynamic program"),
    Entry("sentiment_tag_sequence", "latent tags, marginals"),
    Entry("sentiment_hidden_tags", "hidden CRF: latent tags of each label"),
    Entry("sentiment_short_arcs", "score function, rewarded for short arcs"),
    Entry(
        "sentiment_constrained",
        "one of two labels by a constraint, SparseMAP, each tree's loss",
    ),
    Entry("sentiment_selection", "four words, SparseMAP"),
    Entry("sentiment_budget", "SparseMAP, two modifiers at most"),
)
DEPTHS = range(2, 7)
# Settings of a control with trees of spaCy's own parser. Its encoder starts from the same weights
# as with the other trees.
STOCK_PARSER: tuple[tuple[str, Setting], ...] = (
    ("paths.parser", "training/given_trees_transition/model-best"),
    ("components.latent_parser.component", "parser"),
    ("initialize.after_init.path", "training/given_trees_parser/model-best"),
)


def over_trees(task: str) -> tuple[Entry, ...]:
    """Return entries that compose vectors over the trees of a parser, and their controls.

    Args:
        task: prefix of the recipes' names, for polarity, entities or pairs.
    """
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
    """Return entries for a corpus of entities, over a pre-trained encoder.

    They train for a third of the updates of other entries. Only the first thousand sentences of the
    development set count, since BC5CDR has 4,581.
    """
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


# Train on a tenth of the texts, with as many updates as one epoch of all texts has.
A_TENTH: tuple[tuple[str, Setting], ...] = (
    ("corpora.train.limit", 853),
    ("training.max_epochs", 10),
    ("training.eval_frequency", 25),
)


# Use the first 40,000 words of glove.6B.50d.txt of https://nlp.stanford.edu/projects/glove/, which
# python -m spacy init vectors en glove.6B.50d.txt corpus/glove --truncate 40000 converts.
OF_GLOVE: tuple[tuple[str, Setting], ...] = (
    ("paths.vectors", "corpus/glove"),
    ("components.latent_textcat.model.tok2vec.include_static_vectors", True),
)

# Use the parser of spaCy's small English pipeline, which has to be installed.
OF_SMALL_PIPELINE: tuple[tuple[str, Setting], ...] = (
    ("paths.parser", "en_core_web_sm"),
    ("components.latent_parser.component", "parser"),
)

# Train on all texts, with twice as many updates as A_TENTH has.
TWO_EPOCHS: tuple[tuple[str, Setting], ...] = (("training.max_epochs", 2),)


# Name of the setting of trees that replace the latent ones in a Tree-LSTM.
TREES_OF_LSTM = "components.latent_textcat.model.estimator.trees"
GIVEN_TREES = {
    **{trees: f"{trees} trees" for trees in ("left", "right", "balanced", "random", "flat")},
    "root": "no tree, the sum of all words",
}


def tree_lstms(
    *settings: tuple[str, Setting],
    task: str = "sentiment",
    ending: str = "",
    more: tuple[Entry, ...] = (),
) -> tuple[Entry, ...]:
    """Return entries of a Tree-LSTM over latent trees, over given trees, and without a tree."""
    latent, parsed, given = (
        f"{task}_{trees}_tree_lstm{ending}" for trees in ("sparsemap", "parsed", "given")
    )
    likelihood = ("components.latent_textcat.model.estimator.criterion", "marginal_likelihood")
    convolution = Entry(
        "sentiment_perturb_and_parse", "perturb-and-parse, graph convolution", settings=settings
    )
    return (
        Entry(latent, "expected loss", settings=settings),
        Entry(latent, "marginal likelihood", settings=(*settings, likelihood)),
        *((convolution,) if task == "sentiment" and not ending else ()),
        Entry(parsed, "control: a parser's trees", settings=settings),
        *more,
        *(
            Entry(given, f"control: {what}", settings=(*settings, (TREES_OF_LSTM, trees)))
            for trees, what in GIVEN_TREES.items()
        ),
    )


# Name of the setting of trees that replace the latent ones in the graph convolution.
TREES_OF_ENCODER = "components.latent_encoder.model.estimator.trees"
TWO_LAYERS: tuple[tuple[str, Setting], ...] = (
    ("components.latent_encoder.model.composer.layers", 2),
)
# All entries train on a tenth of the texts, with equally many updates.
CONVOLUTION_ENTRIES = (
    Entry("sentiment_perturb_and_parse", "perturb-and-parse, one layer", settings=A_TENTH),
    Entry(
        "sentiment_perturb_and_parse",
        "perturb-and-parse, two layers",
        settings=(*A_TENTH, *TWO_LAYERS),
    ),
    Entry("sentiment_spigot_graph", "SPIGOT over a semantic graph, one layer", settings=A_TENTH),
    Entry("sentiment_parsed_convolution", "control: a parser's trees", settings=A_TENTH),
    Entry(
        "sentiment_parsed_convolution",
        "control: the trees of en_core_web_sm",
        settings=(*A_TENTH, *OF_SMALL_PIPELINE),
    ),
    *(
        Entry(
            "sentiment_parsed_convolution",
            f"control: {what}",
            settings=(*A_TENTH, (TREES_OF_ENCODER, trees)),
        )
        for trees, what in (("random", "random trees"), ("root", "no tree, no arcs"))
    ),
)
# Losses of crf_ner, compared after equally many updates on all annotation of Universal NER.
LOSSES = {
    "crf": "the sum over all sequences",
    "quadratic": "quadratic smoothing",
    "sparsemap": "SparseMAP",
    "perceptron": "control: perceptron, the best sequence alone",
}
LOSS_ENTRIES = tuple(
    Entry(
        "ner_crf",
        what,
        settings=(
            ("paths.train", "corpus/uner/train.spacy"),
            (DEVELOPMENT, "corpus/uner/dev.spacy"),
            ("training.max_epochs", 0),
            ("training.max_steps", 600),
            ("components.crf_ner.loss", loss),
        ),
    )
    for loss, what in LOSSES.items()
)

BC5CDR = "corpus/bc5cdr"
ENGLISH = ("corpus/english/test.spacy",)


def biomedical(name: str) -> tuple[tuple[str, Setting], ...]:
    """Return settings for one epoch of four corpora, which is judged by the labels of BC5CDR."""
    return (
        ("paths.train", f"corpus/biomedical/{name}.spacy"),
        ("paths.dev", "corpus/biomedical/test.spacy"),
        ("training.max_epochs", 0),
        ("training.max_steps", 900),
        ("training.eval_frequency", 300),
    )


# These trainings are as long as the recipes of incomplete annotation, and judged by the same texts.
AS_INCOMPLETE: tuple[tuple[str, Setting], ...] = (
    (DEVELOPMENT, f"{BC5CDR}/dev.spacy"),
    ("training.max_epochs", 0),
    ("training.max_steps", 300),
)


def trained_on(path: str, *settings: tuple[str, Setting]) -> tuple[tuple[str, Setting], ...]:
    return (("paths.train", path), *AS_INCOMPLETE, *settings)


def _missing(name: str) -> tuple[Entry, ...]:
    """Return controls that learn from a file of ``corpus/incomplete`` without evidence."""
    as_it_is = f"corpus/incomplete/{name}.spacy"
    as_if_complete = f"corpus/incomplete/{name}_as_if_complete.spacy"
    return (
        Entry(
            "ner_crf",
            f"control: {name}, as if it were complete",
            settings=trained_on(as_if_complete),
        ),
        Entry(
            "ner_baseline",
            f"control: {name}, spaCy's ner, as if it were complete",
            settings=trained_on(as_if_complete),
        ),
        Entry(
            "ner_baseline",
            f"control: {name}, spaCy's ner, the rest missing",
            settings=trained_on(as_it_is),
        ),
    )


ENTITY_FIGURES = {"entity F1": "ents_f", "precision": "ents_p", "recall": "ents_r"}
SPARSE = "components.crf_ner.evidence"
# Only the rules of BILUO then relate neighbouring tags.
NO_TRANSITIONS: tuple[tuple[str, Setting], ...] = (
    ("components.crf_ner.model.learn_transitions", False),
)
# Corpora of aggregated sources, which benchmarks.incomplete_controls writes.
AGGREGATES = {
    "plurality": "the tag of each token with most votes",
    "best": "the source alone that agrees most with these tags",
    "hmm": "a hidden Markov model that stops before it drifts",
}
INCOMPLETE_ENTRIES = (
    Entry("ner_crf", "all annotation", settings=trained_on(f"{BC5CDR}/train.spacy")),
    Entry(
        "ner_baseline",
        "all annotation, spaCy's ner",
        settings=trained_on(f"{BC5CDR}/train.spacy"),
    ),
    Entry("ner_flags", "flags beside 150 sentences"),
    Entry("ner_flags", "control: flags, no learned transitions", settings=NO_TRANSITIONS),
    Entry(
        "ner_crf",
        "control: flags, the complete texts and those flagged to have no entity",
        settings=trained_on("corpus/incomplete/flags_negatives.spacy"),
    ),
    Entry(
        "ner_crf",
        "control: flags, self-training filtered by the flags",
        settings=trained_on("corpus/incomplete/flags_self_trained.spacy"),
    ),
    *_missing("flags"),
    Entry("ner_flags_attention", "control: flags, learned by attention over the words"),
    Entry("ner_label_sets", "one label in each half"),
    Entry("ner_label_sets", "control: label sets, no learned transitions", settings=NO_TRANSITIONS),
    # Each label has as many annotated entities as with one label in each half.
    Entry(
        "ner_crf",
        "control: label sets, all labels in half of the texts and nothing else",
        settings=trained_on(f"{BC5CDR}/train.spacy", ("corpora.train.limit", 2280)),
    ),
    # In these texts, all tokens without an entity are outside and none is missing, so that the
    # third entry does not apply.
    *_missing("label_sets")[:2],
    Entry("ner_sparse", "30 % of the entities, 15 % of other tokens as negatives"),
    Entry(
        "ner_sparse",
        "control: 30 % of the entities, the rest missing",
        settings=((f"{SPARSE}.negative_share", 0.0),),
    ),
    Entry("ner_sparse", "control: sparse, no learned transitions", settings=NO_TRANSITIONS),
    *_missing("sparse"),
    Entry(
        "ner_baseline",
        "control: sparse, spaCy's ner, 15 % of other tokens as negatives, drawn once",
        settings=trained_on("corpus/incomplete/sparse_negatives.spacy"),
    ),
    Entry("ner_sources", "five sources, confusions learned"),
    Entry(
        "ner_crf",
        "control: sources, the majority of each span",
        settings=trained_on("corpus/incomplete/sources_as_if_complete.spacy"),
    ),
    *(
        Entry(
            "ner_crf",
            f"control: sources, {what}",
            settings=trained_on(f"corpus/incomplete/sources_{name}.spacy"),
        )
        for name, what in AGGREGATES.items()
    ),
)


def _amounts(complete: int) -> tuple[Entry, ...]:
    """Return an entry for flags with another number of complete texts, and its controls."""
    name = f"corpus/incomplete/flags_{complete}"
    alone = f"{name}_as_if_complete.spacy"
    return (
        Entry(
            "ner_flags",
            f"flags beside {complete} sentences",
            settings=(("paths.train", f"{name}.spacy"), ("paths.complete", alone)),
        ),
        Entry("ner_crf", f"control: the {complete} alone", settings=trained_on(alone)),
        Entry(
            "ner_crf",
            f"control: the {complete}, self-training filtered by the flags",
            settings=trained_on(f"{name}_self_trained.spacy"),
        ),
    )


def _share(percent: int) -> Entry:
    """Return an entry for sparse annotation with another share of the entities."""
    path = f"corpus/incomplete/sparse_{percent}.spacy"
    return Entry("ner_sparse", f"{percent} % of the entities", settings=(("paths.train", path),))


def _wrong_flags(believed: float) -> Entry:
    """Return an entry for flags of which a tenth is wrong.

    Args:
        believed: the share of wrong flags that the component assumes.
    """
    path = "corpus/incomplete/flags_wrong.spacy"
    settings: tuple[tuple[str, Setting], ...] = (
        ("paths.train", path),
        ("components.crf_ner.evidence.flag_error", believed),
    )
    return Entry("ner_flags", f"a tenth wrong, flag_error = {believed:g}", settings=settings)


def _label_sets_and_all(name: str, *settings: tuple[str, Setting]) -> tuple[Entry, ...]:
    """Return an entry of all annotation and one of label sets, with the same training."""
    whole = trained_on(f"{BC5CDR}/train.spacy", *settings)
    return (
        Entry("ner_crf", f"all annotation, {name}", settings=whole),
        Entry("ner_label_sets", f"one label in each half, {name}", settings=settings),
    )


def _longer(steps: int) -> tuple[Entry, ...]:
    """Return entries of all annotation and of label sets with more updates, and a control."""
    settings: tuple[tuple[str, Setting], ...] = (("training.max_steps", steps),)
    return (
        *_label_sets_and_all(f"{steps:,} steps", *settings),
        Entry(
            "ner_baseline",
            f"control: the halves, spaCy's ner, as if they were complete, {steps:,} steps",
            settings=trained_on("corpus/incomplete/label_sets_as_if_complete.spacy", *settings),
        ),
    )


def _averaged(steps: int) -> tuple[Entry, ...]:
    """Return entries of all annotation and of label sets with weights averaged over updates."""
    averages = ("training.optimizer.use_averages", True)
    name = f"{steps:,} steps, averaged weights"
    return _label_sets_and_all(name, ("training.max_steps", steps), averages)


AMOUNTS = (
    *_longer(600),
    *_longer(1200),
    *_longer(2400),
    *_averaged(300),
    *_averaged(600),
    *_amounts(50),
    *_amounts(500),
    *map(_wrong_flags, (0.0, 0.02, 0.1)),
    *map(_share, (10, 60)),
)


ENCODER_STEPS = 150
ENCODER_SCORED = 1000


def _over_encoder(
    config: str, what: str, path: str | None = None, steps: int = ENCODER_STEPS
) -> Entry:
    """Return an entry over a pre-trained encoder. It has half the steps, as each takes longer."""
    settings: tuple[tuple[str, Setting], ...] = (
        (DEVELOPMENT, f"{BC5CDR}/dev.spacy"),
        ("corpora.dev.limit", ENCODER_SCORED),
        ("training.max_steps", steps),
        ("training.eval_frequency", steps),
        ("training.optimizer.learn_rate.total_steps", steps),
    )
    if path is not None:
        settings = (("paths.train", path), *settings)
    return Entry(config, what, settings=settings)


INCOMPLETE_OVER_ENCODER = (
    _over_encoder("ner_transformer_crf", "all annotation", f"{BC5CDR}/train.spacy"),
    _over_encoder("ner_flags_encoder", "flags beside 150 sentences"),
    _over_encoder(
        "ner_transformer_crf",
        "control: flags, self-training filtered by the flags",
        "corpus/incomplete/flags_self_trained_encoder.spacy",
    ),
    _over_encoder(
        "ner_transformer_crf",
        "control: flags, as if it were complete",
        "corpus/incomplete/flags_as_if_complete.spacy",
    ),
    _over_encoder(
        "ner_transformer_crf", "one label in each half", "corpus/incomplete/label_sets.spacy"
    ),
    # As long as two models, one for each label.
    _over_encoder(
        "ner_transformer_crf",
        "one label in each half, 300 steps",
        "corpus/incomplete/label_sets.spacy",
        2 * ENCODER_STEPS,
    ),
    _over_encoder(
        "ner_transformer_crf",
        "control: label sets, as if it were complete",
        "corpus/incomplete/label_sets_as_if_complete.spacy",
    ),
)


@dataclass(frozen=True)
class IncompleteCorpus:
    """A corpus whose annotation is made incomplete in the same ways as BC5CDR's.

    Attributes:
        title: name of the corpus on pages.
        folder: folder of its complete texts.
        label_sets: the sets of labels for which a part of the texts is annotated.
    """

    title: str
    folder: str
    label_sets: tuple[tuple[str, ...], ...]

    def on(self, path: str, *settings: tuple[str, Setting]) -> tuple[tuple[str, Setting], ...]:
        """Return settings for training on a file, which is judged by the development set."""
        return (("paths.train", path), (DEVELOPMENT, f"{self.folder}/dev.spacy"), *settings)

    def entries(self, name: str) -> tuple[Entry, ...]:
        own, on = f"corpus/incomplete_{name}", self.on
        labels = [label for one in self.label_sets for label in one]
        flags = {f"has_{label}": label for label in labels}

        def control(config: str, path: str, what: str) -> Entry:
            return Entry(config, f"control: {what}", settings=on(path, *AS_INCOMPLETE[1:]))

        def pair(kind: str) -> tuple[Entry, ...]:
            path = f"{own}/{kind}_as_if_complete.spacy"
            return (
                control("ner_crf", path, f"{kind}, as if it were complete"),
                control("ner_baseline", path, f"{kind}, spaCy's ner, as if it were complete"),
            )

        alone = f"{own}/flags_as_if_complete.spacy"
        whole = on(f"{self.folder}/train.spacy", *AS_INCOMPLETE[1:])
        return (
            Entry("ner_crf", "all annotation", settings=whole),
            Entry("ner_baseline", "all annotation, spaCy's ner", settings=whole),
            Entry(
                "ner_flags",
                "flags beside 150 sentences",
                settings=on(
                    f"{own}/flags.spacy",
                    ("paths.complete", alone),
                    ("components.crf_ner.evidence.flags", flags),
                ),
            ),
            control(
                "ner_crf",
                f"{own}/flags_self_trained.spacy",
                "flags, self-training filtered by the flags",
            ),
            *pair("flags"),
            Entry("ner_label_sets", "label sets", settings=on(f"{own}/label_sets.spacy")),
            *pair("label_sets"),
            Entry("ner_sparse", "30 % of the entities", settings=on(f"{own}/sparse.spacy")),
            *pair("sparse"),
            control("ner_baseline", f"{own}/sparse.spacy", "sparse, spaCy's ner, the rest missing"),
            Entry("ner_sources", "five sources", settings=on(f"{own}/sources.spacy")),
            *pair("sources"),
            *(
                control("ner_crf", f"{own}/sources_{name}.spacy", f"sources, {AGGREGATES[name]}")
                for name in ("plurality", "best")
            ),
        )

    def longer_label_sets(self, name: str, steps: int) -> Entry:
        """Return an entry of label sets with another number of updates."""
        path = f"corpus/incomplete_{name}/label_sets.spacy"
        settings = self.on(path, ("training.max_steps", steps))
        return Entry(
            "ner_label_sets", f"label sets of {self.title}, {steps} steps", settings=settings
        )


MORE_CORPORA = {
    "wnut": IncompleteCorpus(
        "WNUT-17",
        "corpus/ner",
        (("person", "product", "creative-work"), ("location", "group", "corporation")),
    ),
    "uner": IncompleteCorpus("Universal NER", "corpus/uner", (("PER",), ("LOC", "ORG"))),
}

# Trainings that are as long as the trainings of two models, one for each set of labels, together.
TWICE_AS_LONG = {name: corpus.longer_label_sets(name, 600) for name, corpus in MORE_CORPORA.items()}


def compared(control: Entry, *entries: Entry) -> tuple[Entry, ...]:
    """Return a control, and copies of entries that are compared with it."""
    return (control, *(replace(entry, control=control.name) for entry in entries))


NOWHERE = "none on this task"
# Published figures by recipe, on the expressions of Nangia and Bowman. Our expressions are other
# draws by their rules.
LISTOPS_PUBLISHED = {
    "listops_lstm": "ListOps 71.5 (Nangia and Bowman 2018)",
    "listops_spinn": "ListOps, gold Tree-LSTM 98.7 (Nangia and Bowman 2018)",
    "listops_reinforce_shift_reduce": "ListOps, below an LSTM's 71.5 (Nangia and Bowman 2018)",
    "listops_reinforce_all_along": "ListOps, below an LSTM's 71.5 (Nangia and Bowman 2018)",
    "listops_beam_merges": "ListOps 99.9, lengths of training (Ray Chowdhury and Caragea 2023)",
    "listops_ppo_merges": "ListOps 99.2 ± 0.5 (Havrylov et al. 2019)",
    "listops_ppo_merges_tree_lstm": "ListOps 99.2 ± 0.5 (Havrylov et al. 2019)",
    "listops_gumbel_tree_lstm": "ListOps 57.6 ± 2.9 (Nangia and Bowman 2018)",
}
PENG = "SST-2, no figure at hand (Peng et al. 2018)"
SYSTEMS = (
    *compared(
        *(
            replace(entry, published=LISTOPS_PUBLISHED.get(entry.config, NOWHERE))
            for entry in LISTOPS_ENTRIES
        )
    ),
    *compared(
        Entry("sentiment_baseline", NO_STRUCTURE),
        Entry("sentiment_marginals", "structured attention, non-projective", published=NOWHERE),
        Entry(
            "sentiment_projective",
            "structured attention, projective",
            published="SNLI 86.8, simple attention 86.2 (Kim et al. 2017)",
        ),
        Entry("sentiment_segments", "structured attention, segments", published=NOWHERE),
        Entry(
            "sentiment_perturb_and_parse",
            "perturb-and-parse, graph convolution",
            published="SST-2 84.6 (Corro and Titov 2019)",
        ),
        Entry("sentiment_spigot", "SPIGOT", published=PENG),
        Entry("sentiment_spigot_graph", "SPIGOT over a semantic graph", published=PENG),
        Entry("sentiment_hidden_tags", "hidden CRF: latent tags of each label", published=NOWHERE),
    ),
    *compared(
        Entry(
            "sentiment_given_tree_lstm",
            "control: no tree, the sum of all words, two epochs",
            settings=(*TWO_EPOCHS, (TREES_OF_LSTM, "root")),
        ),
        Entry(
            "sentiment_sparsemap_tree_lstm",
            "Tree-LSTM over SparseMAP's trees, two epochs",
            settings=TWO_EPOCHS,
            published="SST-2 84.7 (Niculae et al. 2018b)",
        ),
    ),
    *compared(
        Entry("rationale_full_text", "control: all words"),
        Entry("rationale_fusedmax", "fusedmax attention", published=NOWHERE),
        Entry("rationale_oscarmax", "oscarmax attention", published=NOWHERE),
        Entry(
            "rationale_learning_to_explain",
            "learning to explain, I-MLE",
            published="aroma of beers: MSE 2.71, precision 47.98 (Niepert et al. 2021)",
        ),
        Entry("rationale_hard_kuma", "HardKuma rationales", published=NOWHERE),
        Entry(
            "rationale_one_word",
            "latent categorical, sparse marginalization",
            published="game of signals 93.4 (Correia et al. 2020)",
        ),
        Entry("rationale_rebar", "latent categorical, REBAR", published=NOWHERE),
    ),
    *compared(
        Entry(
            "pairs_snli_attention",
            "control: attention",
            published="all of SNLI 86.2 (Kim et al. 2017)",
        ),
        Entry(
            "pairs_snli_one_to_one",
            "structured alignment, SparseMAP matching",
            published="all of SNLI, no figure at hand (Niculae et al. 2018a)",
        ),
    ),
    Entry("pairs_snli_attention", EVEN_ALIGNMENT, settings=NO_ALIGNMENT),
    Entry("pairs_snli_baseline", "control: spaCy's textcat on both texts as one"),
    *compared(
        Entry("pairs_alignment_attention", "control: attention", model="model-last"),
        Entry(
            "pairs_alignment_soft_dtw",
            "soft-DTW, quadratic",
            model="model-last",
            published=NOWHERE,
        ),
        Entry(
            "pairs_alignment_words",
            "attention, and IBM model 2 of the words",
            model="model-last",
            published=NOWHERE,
        ),
    ),
    *compared(
        Entry("ner_baseline", "control: spaCy's ner"),
        Entry(
            "ner_crf", "CRF tagger", published="CoNLL-2003 English 90.80 (Mensch and Blondel 2018)"
        ),
        Entry(
            "ner_crf_quadratic",
            "L2 tagger: quadratic smoothing",
            published="CoNLL-2003 English 90.86 (Mensch and Blondel 2018)",
        ),
    ),
    *compared(
        Entry("tree_ewt_parser", "control: spaCy's parser"),
        Entry("tree_ewt_spigot_parser", "syntax under a parser, SPIGOT", published=NOWHERE),
    ),
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
            Entry("demo_large_batches", "batches of six times as many words, 500 steps", DEMO),
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
        SYSTEMS,
    ),
    "incomplete": Group(
        "Learning: entities from incomplete annotation of BC5CDR",
        ("bc5cdr-data", "incomplete-data", "incomplete-controls-data"),
        ENTITY_FIGURES,
        INCOMPLETE_ENTRIES,
    ),
    "incomplete_amounts": Group(
        "Learning: entities from other amounts of annotation of BC5CDR",
        ("bc5cdr-data", "incomplete-more-data"),
        ENTITY_FIGURES,
        AMOUNTS,
    ),
    "incomplete_corpora": Group(
        "Learning: entities from four corpora, each annotated for one label",
        ("biomedical-data",),
        ENTITY_FIGURES,
        (
            Entry(
                "ner_label_sets", "four corpora, one label each", settings=biomedical("label_sets")
            ),
            Entry(
                "ner_label_sets",
                "control: four corpora, as if they were complete",
                settings=biomedical("as_if_complete"),
            ),
            Entry(
                "ner_baseline",
                "control: four corpora, spaCy's ner, as if they were complete",
                settings=biomedical("as_if_complete"),
            ),
        ),
    ),
    "incomplete_encoder": Group(
        "Learning: entities from incomplete annotation of BC5CDR, over a pre-trained encoder",
        ("bc5cdr-data", "incomplete-data", "incomplete-controls-data"),
        ENTITY_FIGURES,
        INCOMPLETE_OVER_ENCODER,
    ),
    "incomplete_wnut": Group(
        "Learning: entities from incomplete annotation of WNUT-17",
        ("ner-data", "incomplete-more-data"),
        ENTITY_FIGURES,
        MORE_CORPORA["wnut"].entries("wnut"),
    ),
    "incomplete_uner": Group(
        "Learning: entities from incomplete annotation of Universal NER",
        ("uner-data", "incomplete-more-data"),
        ENTITY_FIGURES,
        MORE_CORPORA["uner"].entries("uner"),
    ),
    "incomplete_longer": Group(
        "Learning: entities from label sets of two other corpora, trained twice as long",
        ("ner-data", "uner-data", "incomplete-more-data"),
        ENTITY_FIGURES,
        tuple(TWICE_AS_LONG.values()),
    ),
    "rationales": Group(
        "Learning: rationales of sentence polarity",
        ("sentiment-data",),
        {**ACCURACY, "words": "rationale_rate"},
        (
            Entry("rationale_full_text", "control: all words"),
            Entry("rationale_learning_to_explain"),
            Entry("rationale_k_of_n"),
            Entry("rationale_at_most_k", "at most as many words"),
            Entry("rationale_budget"),
            Entry("rationale_contiguous", "contiguous words, a chain of tags"),
            Entry("rationale_runs", "four words in two runs, I-MLE"),
            Entry("rationale_spectra", "four words, a chain in a factor graph: SPECTRA"),
            Entry("rationale_tags", "contiguous words, tags and bound transitions"),
            Entry("rationale_hard_kuma"),
            Entry("rationale_hard_concrete"),
            Entry("rationale_rectified_gaussian"),
            *ATTENTION_ENTRIES,
            *ONE_WORD_ENTRIES,
            *FOUR_WORDS_ENTRIES,
        ),
    ),
    "tree_lstm": Group(
        "Learning: polarity of a tenth of the sentences by a Tree-LSTM over latent trees",
        ("sentiment-data", "english-data", "english-train"),
        ACCURACY,
        tree_lstms(
            *A_TENTH,
            more=(
                Entry(
                    "sentiment_parsed_tree_lstm",
                    "control: the trees of en_core_web_sm",
                    settings=(*A_TENTH, *OF_SMALL_PIPELINE),
                ),
            ),
        ),
    ),
    "tree_lstm_vectors": Group(
        "Learning: polarity of a tenth by a Tree-LSTM over pre-trained word vectors",
        ("sentiment-data", "english-data", "english-train"),
        ACCURACY,
        tuple(
            entry
            for entry in tree_lstms(*A_TENTH, *OF_GLOVE)
            if entry.config != "sentiment_perturb_and_parse"
        ),
    ),
    "tree_lstm_all": Group(
        "Learning: sentence polarity by a Tree-LSTM over latent trees, two epochs",
        ("sentiment-data", "english-data", "english-train"),
        ACCURACY,
        tree_lstms(*TWO_EPOCHS),
    ),
    "tree_lstm_encoder": Group(
        "Learning: polarity of a tenth by a Tree-LSTM over a pre-trained encoder",
        ("sentiment-data", "english-data", "english-train"),
        ACCURACY,
        tree_lstms(("corpora.train.limit", 853), ending="_encoder"),
    ),
    "graph_convolution": Group(
        "Learning: polarity of a tenth by graph convolution over latent trees",
        ("sentiment-data", "english-data", "english-train"),
        ACCURACY,
        CONVOLUTION_ENTRIES,
    ),
    "losses": Group(
        "Learning: entities of Universal NER by four losses",
        ("uner-data",),
        ENTITY_FIGURES,
        LOSS_ENTRIES,
    ),
    "tree_lstm_entities": Group(
        "Learning: entities of WNUT-17 by a Tree-LSTM over latent trees",
        ("ner-data",),
        ENTITY_FIGURES,
        (
            Entry("ner_crf_tree_lstm", "SparseMAP"),
            *(
                Entry(
                    "ner_crf_given_tree_lstm",
                    f"control: {what}",
                    settings=((TREES_OF_ENCODER, trees),),
                )
                for trees, what in GIVEN_TREES.items()
                if trees != "root"
            ),
            Entry("ner_crf", "control: no trees and no Tree-LSTM"),
        ),
    ),
    "tree_lstm_pairs": Group(
        "Learning: entailment by a Tree-LSTM over a latent tree for each text",
        ("pairs-snli-data", "english-data", "english-train"),
        ACCURACY,
        tree_lstms(task="pairs_snli"),
    ),
    "tree_lstm_pairs_encoder": Group(
        "Learning: entailment by a Tree-LSTM over a pre-trained encoder",
        ("pairs-snli-data", "english-data", "english-train"),
        ACCURACY,
        tree_lstms(task="pairs_snli", ending="_encoder"),
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
            Entry("aspects_attention", "control: attention to all words"),
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
            Entry("pairs_alignment_gumbel_sinkhorn", "Gumbel-Sinkhorn", model="model-last"),
            Entry("pairs_alignment_soft_dtw", "soft-DTW, quadratic", model="model-last"),
            Entry(
                "pairs_alignment_fertility",
                "each word at most twice: a factor graph",
                model="model-last",
            ),
            Entry(
                "pairs_alignment_loopy",
                "the same factor graph, its marginals by belief propagation",
                model="model-last",
            ),
            Entry(
                "pairs_alignment_words",
                "attention, and IBM model 2 of the words",
                model="model-last",
            ),
            Entry(
                "pairs_alignment_words_uniform",
                "attention, and IBM model 1 of the words",
                model="model-last",
            ),
            Entry("pairs_alignment_attention", "control: attention", model="model-last"),
            Entry(
                "pairs_alignment_attention",
                EVEN_ALIGNMENT,
                model="model-last",
                settings=NO_ALIGNMENT,
            ),
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
            Entry("parser_ewt", "as long as it gains", settings=AS_LONG_AS_IT_GAINS),
            Entry(
                "parser_ewt_transition",
                "control: as long as it gains",
                settings=AS_LONG_AS_IT_GAINS,
            ),
            Entry("parser_latin", "UD Latin CIRCSE"),
        ),
    ),
    "english": Group(
        "Learning: a pipeline for English",
        ("english-data",),
        {
            "tags": "tag_acc",
            "attachment": "dep_uas",
            "with labels": "dep_las",
            "entities, F1": "ents_f",
        },
        (
            Entry("english", "`latent_parser` and `crf_ner`", tests=ENGLISH),
            Entry("english_spacy", "control: spaCy's `parser` and `ner`", tests=ENGLISH),
            Entry("english_encoder", "the same over MiniLM", tests=ENGLISH),
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
                    settings=((TREES_OF_ENCODER, trees),),
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
            Entry("pairs_transformer_baseline", "control: attention"),
            Entry("pairs_transformer_baseline", EVEN_ALIGNMENT, settings=NO_ALIGNMENT),
            Entry("tree_transformer"),
            Entry("tree_transformer_baseline", NO_STRUCTURE),
            Entry("parser_ewt_transformer", "latent_parser"),
            Entry("parser_ewt_transformer_baseline", "control: spaCy's parser"),
        ),
    ),
}
