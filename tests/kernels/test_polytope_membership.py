from __future__ import annotations

import itertools

import numpy as np

from spacy_latent.kernels.arborescences.polytope_membership import entered_too_little


def least_cut(mean: np.ndarray) -> float:
    """Return the least total of arcs into a set of words, over all sets."""
    words = range(1, len(mean))
    least = np.inf
    for size in words:
        for inside in itertools.combinations(words, size):
            outside = [node for node in range(len(mean)) if node not in inside]
            least = min(least, mean[np.ix_(outside, inside)].sum())
    return least


def found_in(mean: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    inside = np.ones((2 * len(mean), len(mean)), dtype=np.bool_)
    return inside[: entered_too_little(mean, tolerance, inside)]


def test_flows_against_every_cut() -> None:
    generator = np.random.default_rng(0)
    answers = []
    for _ in range(600):
        n = int(generator.integers(1, 6))
        concentration = generator.choice([0.05, 0.3, 1.0])
        mean = np.zeros((n + 1, n + 1))
        mean[:, 1:] = generator.dirichlet(np.full(n + 1, concentration), size=n).T
        np.fill_diagonal(mean, 0.0)
        mean[:, 1:] /= np.maximum(mean[:, 1:].sum(0), 1e-12)
        mean[0, 1:] += 0.3 * (generator.random() < 0.5)
        found = found_in(mean)
        for inside in found:
            assert not inside[0] and mean[np.ix_(~inside, inside)].sum() < 1.0 - 1e-6
        assert len({tuple(inside) for inside in found}) == len(found)
        answers.append(least_cut(mean) < 1.0 - 1e-6)
        assert bool(len(found)) == answers[-1]
    assert 0.2 < np.mean(answers) < 0.8


def test_averages_of_trees_are_entered_and_cycles_are_not() -> None:
    chain, cycle = np.zeros((3, 3)), np.zeros((3, 3))
    chain[0, 1] = chain[1, 2] = 1.0
    cycle[2, 1] = cycle[1, 2] = 1.0
    other = chain[[0, 2, 1]][:, [0, 2, 1]]
    assert not len(found_in(chain)) and not len(found_in(0.5 * (chain + other)))
    assert not len(found_in(np.zeros((1, 1))))
    assert found_in(cycle).tolist() == [[False, True, True]]
    # The words form a cycle with a weight of 0.001.
    mostly = 0.999 * chain + 0.001 * cycle
    assert found_in(mostly).tolist() == [[False, True, True]]
    assert not len(found_in(mostly, 0.01))
