"""Non-projective dependency trees: spanning arborescences with root node 0."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.kernels.autograd.derivatives import differentiable_once
from spacy_latent.structures.arborescence_clocks import reparameterize_trees
from spacy_latent.structures.results import ReparameterizedTrace, Traces
from spacy_latent.structures.tree_sparsemap import SolvedTree

TRACES_ONCE = "log-probabilities of traces of trees can be differentiated once"


class SpanningTree(SolvedTree):
    """Dependency trees whose arcs may cross.

    MAP is Chu-Liu-Edmonds (O(n²)), sums are by the Matrix-Tree theorem (O(n³); Koo et al. 2007),
    samples by an elimination in reverse (O(n³), see kernels.arborescences.arborescence_samples).
    For arguments and shapes see :class:`~spacy_latent.structures.dependency.DependencyTree`.

    On the CPU, marginals are computed without a subtraction. Each, however small, has a relative
    error of some 1e-14 in float64, in the same time at scores of any scale. This precision can be
    lost if the best head of a token only leads back to that token, and its other heads score more
    than 300 less. Marginals below 1e-15 may then have no correct digit. The gradients that go back
    through marginals have an error of about 1e-8 in float32 and 1e-12 in float64, times the given
    gradients.
    """

    family: ClassVar[str] = "spacy_latent.kernels.arborescences.matrix_tree:FAMILY"
    tractable = SolvedTree.tractable | {"sample_trace", "reparameterize_trace"}

    def _sample_trace(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Traces:
        """Sample by Chu-Liu-Edmonds with exponential clocks.

        It chooses a head for each token, and for each cycle an arc that enters it, each from the
        softmax of all candidates. A single root is chosen first.
        """
        from spacy_latent.kernels.arborescences.arborescence_traces import traces

        options = self._options(scores), num_samples, generator, self.name
        heads, log_probs, slopes = traces(scores, lengths, *options)
        z = self._indicate(heads.flatten(0, 1), scores.detach(), lengths.repeat(num_samples))
        z = z.unflatten(0, heads.shape[:2])
        known = log_probs.to(scores.dtype)
        if not (torch.is_grad_enabled() and scores.requires_grad):
            return Traces(z, known)
        slopes = slopes.to(scores.dtype)
        # The value comes from the kernel, and the gradient from this sum, which is linear in
        # scores. The slopes change with them, too, so there is no second derivative.
        linear = differentiable_once(scores, TRACES_ONCE)
        along = (torch.where(slopes != 0, linear, 0.0) * slopes).sum((2, 3))
        return Traces(z, known + (along - along.detach()))

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        """Return noisy scores, which are −log of the clocks, and the tree.

        The sum of the clocks over the arcs of the tree is the least of all trees, except with a
        single root: its arc is the first to ring among the arcs to possible roots. This runs in
        torch and not in a kernel, with O(n²) operations for each depth of nested cycles.
        """
        sizes = lengths.to(scores.device)
        masked = self._mask(scores, self.part_mask(scores, sizes))
        return reparameterize_trees(masked, sizes, self.single_root, self.raise_infeasible)
