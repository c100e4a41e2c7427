"""Bidirectional LSTM as the encoder of a scorer (Kiperwasser and Goldberg 2016)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from spacy_latent.errors import check_whole
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class BiLstm(nn.Module):
    """Encoder from ``(B, n, width)`` and lengths ``(B,)`` to ``(B, n, 2·hidden_width)``."""

    def __init__(self, width: int, hidden_width: int, layers: int) -> None:
        super().__init__()
        self.output_width = 2 * hidden_width
        self.lstm = nn.LSTM(width, hidden_width, layers, batch_first=True, bidirectional=True)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        if not vectors.shape[:2].numel():
            # torch refuses to pack an empty batch.
            return vectors.new_zeros(*vectors.shape[:2], self.output_width)
        sizes = fetch(lengths).clamp_min(1)
        # Otherwise torch copies the order to a GPU and back.
        ordered = vectors.device.type != "cpu" and bool((sizes[1:] <= sizes[:-1]).all())
        packed = pack_padded_sequence(vectors, sizes, batch_first=True, enforce_sorted=ordered)
        encoded, _ = self.lstm(packed)
        return pad_packed_sequence(encoded, batch_first=True, total_length=vectors.shape[1])[0]


def build_bilstm_v1(hidden_width: int = 32, layers: int = 1) -> EncoderBuilder:
    """Return a builder of an LSTM from the left and one from the right over each text.

    Args:
        hidden_width: width of each direction.
        layers: number of LSTM layers.
    """
    check_whole("BiLSTM", hidden_width=hidden_width, layers=layers)
    return partial(BiLstm, hidden_width=hidden_width, layers=layers)
