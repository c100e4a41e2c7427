"""The component ``latent_encoder``: token vectors through a latent structure, for any listener.

Importing this module is cheap and makes ``doc._.latent`` available. spaCy imports it whenever a
pipeline is made, because it is an entry point.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from spacy.errors import Errors
from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2Vec, Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, set_dropout_rate
from thinc.types import Floats2d

from spacy_latent import annotations
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind
from spacy_latent.models.listener import LatentListener, remember
from spacy_latent.pipeline.encoder_supervision import (
    begin_supervised_update,
    check_supervision,
    refuse_supervision,
    warn_without_gold,
)
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.inspection import inspect_docs
from spacy_latent.pipeline.shared_upstream import HeldBatch, UpstreamListeners
from spacy_latent.pipeline.trained_component import TrainedComponent, sample_of
from spacy_latent.pipeline.training_batch import TrainingBatch

if TYPE_CHECKING:
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.models.latent_layer_model import LatentBatch

    Predictions = tuple[LatentBatch, list[list[SpanStructure]]]

DEFAULT_CONFIG = """
[latent_encoder]

[latent_encoder.model]
@architectures = "spacy-latent.LatentTok2Vec.v1"
width = null

[latent_encoder.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"

[latent_encoder.model.structure]
@misc = "spacy-latent.SpanningTree.v1"

[latent_encoder.model.scorer]
@misc = "spacy-latent.BiaffineScorer.v1"

[latent_encoder.model.estimator]
@misc = "spacy-latent.Marginals.v1"

[latent_encoder.model.composer]
@misc = "spacy-latent.GraphConvolution.v1"

[latent_encoder.model.span_getter]
@misc = "spacy-latent.SentenceSpans.v1"
max_length = 128
"""


class LatentEncoder(TrainedComponent):
    """Encoder that gives sentences a latent structure, and tokens vectors composed with it.

    Listening components use the vectors, and their gradients train the structure. They listen with
    ``spacy-latent.LatentListener.v1``, or with spaCy's own listener if ``doc.tensor`` is free.

    The loss that is reported in training is the squared norm of the gradients from listeners, plus
    the loss of the supervision times its weight.

    ``nlp.update(sgd=...)`` finishes this component's update before its listeners have run. So the
    gradients from listeners change its weights one step later. ``spacy train`` finishes all updates
    at the end of the step.

    Args:
        annotate: "map" writes the best structure to ``doc._.latent``. "probabilities" also writes
            the probabilities of its parts. "none" writes nothing.
        threshold: least probability of a part that is stored.
        alternatives: number of alternative structures to store for each span.
        scorer: scorer of the structures for ``spacy evaluate``, such as
            ``spacy-latent.attachment_scorer.v2``; None for no scores.
        set_heads: write the best tree to ``token.head`` and ``token.dep`` of docs that are not
            parsed.
        supervision: weight of the mean loss of gold structures per token; 0 for no such loss. Gold
            structures are ``reference._.latent`` under this component's name, else the heads of a
            parsed reference. The unweighted loss is reported under the component's name with
            ``_supervision``. With a weight above 0 the component also learns without listeners.
        supervision_loss: "crf", −log p(gold) in nats; "sparsemap", the SparseMAP loss;
            "perceptron", the score of the best structure minus the score of the gold one; or
            "perturbed", the mean of this difference under noise on the scores. "perturbed" only
            needs a best structure.
        supervision_margin: with "perceptron", the score of the gold structure must exceed the score
            of another one by this margin for each wrong part of the other.
        supervision_noise, supervision_samples: with "perturbed", the standard deviation of the
            Gaussian noise of each part, and the number of draws for each batch.
        teacher_forcing: in training, compose with gold structures if there are any. With the
            transitions of a shift-reduce parser this is SPINN (Bowman et al. 2016).
    """

    output_for_each_label = False

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], list[Floats2d]],
        name: str = "latent_encoder",
        *,
        annotate: str = "map",
        threshold: float = 0.01,
        alternatives: int = 0,
        set_heads: bool = False,
        supervision: float = 0.0,
        supervision_loss: str = "crf",
        supervision_margin: float = 0.0,
        supervision_noise: float = 1.0,
        supervision_samples: int = 8,
        teacher_forcing: bool = False,
        scorer: Callable | None = None,
    ) -> None:
        if not model.has_ref("latent"):
            raise LatentError(
                f"{name}: its model is {model.name!r}, which has no latent structure. Use "
                'model.@architectures = "spacy-latent.LatentTok2Vec.v1" with that model as tok2vec.'
            )
        self.vocab = vocab
        self.model = model
        self.name = name
        self.scorer = scorer
        self.cfg: dict[str, Any] = {
            "annotate": annotate,
            "threshold": threshold,
            "alternatives": alternatives,
            "set_heads": set_heads,
            "supervision": supervision,
            "supervision_loss": supervision_loss,
            "supervision_margin": supervision_margin,
            "supervision_noise": supervision_noise,
            "supervision_samples": supervision_samples,
            "teacher_forcing": teacher_forcing,
        }
        self.keep_settings()
        self.listener_map: dict[str, list[Tok2VecListener]] = {}
        self._batch = TrainingBatch()
        self._held: list[HeldBatch] = []

    def check_settings(self) -> None:
        cfg, name = self.cfg, self.name
        annotations.check_settings(name, cfg["annotate"], cfg["threshold"], cfg["alternatives"])
        check_supervision(name, cfg)

    # ---------------------------------------------------------------- listeners

    @property
    def listeners(self) -> list[Tok2VecListener]:
        """Listeners of all components."""
        return [listener for found in self.listener_map.values() for listener in found]

    @property
    def listening_components(self) -> list[str]:
        """Names of the components that have listeners."""
        return list(self.listener_map)

    def add_listener(self, listener: Tok2VecListener, component_name: str) -> None:
        """Connect a listener of a component, if it is not connected yet.

        Raises:
            LatentError: if it expects vectors of another width.
        """
        width = self.model.maybe_get_dim("nO")
        if width is not None and listener.get_dim("nO") != width:
            raise LatentError(
                f"The listener of {component_name!r} expects vectors of {listener.get_dim('nO')} "
                f"features and {self.name!r} gives {width}. Set the listener's width to {width}."
            )
        found = self.listener_map.setdefault(component_name, [])
        if listener not in found:
            found.append(listener)

    def remove_listener(self, listener: Tok2VecListener, component_name: str) -> bool:
        """Disconnect a listener, and return whether it was connected."""
        found = self.listener_map.get(component_name, [])
        if listener not in found:
            return False
        found.remove(listener)
        if not found:
            del self.listener_map[component_name]
        return True

    def find_listeners(self, component: Any) -> None:
        """Register the listeners of a component that name this component.

        Listeners to "*" are ignored, since a tok2vec also sends them its vectors.
        """
        model = getattr(component, "model", None)
        if isinstance(model, Model):
            for node in model.walk():
                if isinstance(node, LatentListener):
                    node.meet(self.name, component.name)
                if isinstance(node, Tok2VecListener) and node.upstream_name == self.name:
                    self.add_listener(node, component.name)

    # ---------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> "Predictions":
        """Compute vectors and structures.

        Returns:
            The LatentBatch of the docs, and the structures of each doc.
        """
        from spacy_latent.models.latent_tok2vec import latent_layer, run
        from spacy_latent.models.structure_reader import read_structures

        docs = list(docs)
        self.warn_without_vectors(docs)
        batch, _ = run(self.model, docs, is_train=False)
        level = self.cfg["annotate"]
        if level == "none" and self.cfg["set_heads"]:
            level = "map"
        if level == "none" or not batch.groups:
            return batch, [[] for _ in batch.spans]
        stored = annotations.Stored(level, self.cfg["threshold"], self.cfg["alternatives"])
        return batch, read_structures(batch, latent_layer(self.model), stored)

    def set_annotations(self, docs: Iterable[Doc], predictions: "Predictions") -> None:
        batch, structures = predictions
        stock = any(not isinstance(found, LatentListener) for found in self.listeners)
        # Listeners of disabled components are not linked, but may be enabled later.
        upstream = {self.name, *(found.upstream_name for found in self.listeners)}
        for doc, vectors, spans in zip(docs, batch.vectors, structures):
            # A copy: a view would keep the vectors of the whole batch alive.
            vectors = vectors.copy()
            for name in upstream:
                remember(doc, name, vectors)
            if stock:
                doc.tensor = vectors  # type: ignore[assignment]
            if self.cfg["annotate"] != "none":
                annotations.write(doc, self.name, spans)
            if self.cfg["set_heads"]:
                annotations.set_heads(doc, spans, self.name)

    # ---------------------------------------------------------------- training

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        """Run the model and pass its vectors to the listeners.

        The gradients of the listeners are added up as they arrive. :meth:`finish_update` or the
        next update backpropagates them. If this component listens to another one, they are
        backpropagated just before the weights of the other component change.
        """
        if self._flush() and sgd is not None:
            self.model.finish_update(sgd)
        self._batch = TrainingBatch()
        upstream = UpstreamListeners(self.model)
        self._held = upstream.wait_for(self._batch, self.name)
        weight = self.cfg["supervision"]
        if not self.listeners and not weight:
            return
        docs = [example.predicted for example in examples]
        set_dropout_rate(self.model, drop)
        nothing = None
        if weight:
            vectors, backprop = begin_supervised_update(self, examples, losses)
            nothing = [self.model.ops.alloc2f(*v.shape) for v in vectors]
        else:
            vectors, backprop = self.model.begin_update(docs)
        self._batch.begin(upstream.backprop_by(backprop), losses, self.name, nothing)
        batch_id = Tok2VecListener.get_batch_id(docs)
        for listener in self.listeners:
            listener.receive(batch_id, vectors, self._batch.receive)

    def _flush(self) -> bool:
        """Backpropagate the previous batch, also through the components that this one listens to.

        Return whether this made gradients of this component's weights.
        """
        batch, before = self._batch, self._batch.flushed
        for held in self._held:
            held.flush()
        batch.flush()
        return batch.flushed and not before

    def backprop_pending(self) -> None:
        """Backpropagate now, without waiting for :meth:`finish_update`.

        The gradients also go through the components that this one listens to. Callers use it to sum
        the gradients of several processes before the weights change. Listeners must not send
        further gradients.
        """
        self._flush()

    def finish_update(self, sgd: Optimizer) -> None:
        # nlp.update calls this before the listeners have run.
        self._batch.flush(complete=not self.listeners)
        self.model.finish_update(sgd)

    def get_loss(self, examples: Iterable[Example], scores: object) -> None:
        """Return None, since the losses of the listeners train this component."""

    def initialize(
        self, get_examples: Callable[[], Iterable[Example]], *, nlp: Language | None = None
    ) -> None:
        """Infer the widths from a sample of the data, and draw the weights."""
        self.check_initialize(get_examples, nlp)
        docs = [example.x for example in sample_of(get_examples())]
        if not docs:
            raise ValueError(Errors.E923.format(name=self.name))
        self._forget_batch()
        self.model.initialize(X=docs)
        self._refuse_settings()
        if self.cfg["supervision"]:
            warn_without_gold(self, get_examples(), nlp)
        for component, found in self.listener_map.items():
            for listener in found:
                self.add_listener(listener, component)
        if nlp is not None:
            self._refuse_shared_tensor(nlp)

    def _refuse_settings(self) -> None:
        from spacy_latent.models.latent_tok2vec import latent_layer

        layer = latent_layer(self.model)
        structure = layer.structure
        if self.cfg["set_heads"] and "heads" not in find_kind(structure.kind).accessors:
            raise LatentError(
                f"{self.name}: set_heads needs trees, and {structure.name} gives "
                f"{structure.parts or 'other parts'}. Set set_heads = false."
            )
        if self.cfg["supervision"]:
            refuse_supervision(self.name, layer, self.cfg["supervision_loss"])

    def _refuse_shared_tensor(self, nlp: Language) -> None:
        """Raise LatentError if a listener reads a ``doc.tensor`` that others may write."""
        stock = [
            component
            for component, found in self.listener_map.items()
            if not all(isinstance(listener, LatentListener) for listener in found)
        ]
        others = [
            name
            for name, pipe in nlp.pipeline
            if isinstance(pipe, Tok2Vec) or (isinstance(pipe, LatentEncoder) and pipe is not self)
        ]
        if stock and others:
            raise LatentError(
                f"{', '.join(stock)} would read the vectors of {self.name!r} from doc.tensor, "
                f"which {', '.join(others)} may overwrite. Use "
                f'@architectures = "spacy-latent.LatentListener.v1" in {", ".join(stock)}.'
            )

    def add_label(self, label: str) -> int:
        raise NotImplementedError(f"{self.name} has no labels: its structures are latent.")

    def _after_loading(self) -> None:
        self._forget_batch()

    def _forget_batch(self) -> None:
        """Drop a batch that was not backpropagated, since its graph refers to replaced weights."""
        self._batch = TrainingBatch()
        for held in self._held:
            held.drop()
        self._held = []
        for listener in self.listeners:
            listener.receive(None, None, None)  # type: ignore[arg-type]


make_latent_encoder = Language.factory(
    "latent_encoder",
    assigns=["doc._.latent"],
    default_config=default_config(LatentEncoder, "latent_encoder", DEFAULT_CONFIG),
    func=factory_of(LatentEncoder, "latent_encoder"),
)


__all__ = ["LatentEncoder", "inspect_docs", "make_latent_encoder"]
