"""How efficiently a setting explores a posterior, judged by the variogram of its draws.

Half the mean squared difference of draws k transitions apart is 1 − ρ(k) for a quantity with
variance one, where ρ is its autocorrelation. The first lag alone would not do: a coordinate may
jump back and forth within a region while the chain hardly leaves it. Quantities are what the user
asked for and their squares, because a chain whose neighbouring draws are mirror images has good
means and poor variances (as in ChEES: Hoffman, Radul & Sountsov 2021). Distances from the median
stand for squares. The score of a setting is that of its worst quantities, divided by the work of a
transition.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# More quantities than this are thinned out. The smallest variables keep all of their elements.
MOST_QUANTITIES = 128
# The score is that of this fraction of the quantities, the worst, but of two at least.
_WORST = 0.1
_LEAST_WORST = 2
# An autocorrelation above this is not small. That of independent draws may be estimated as less.
_CORRELATED = 0.4
# Acceptance rates above this are as good as any.
_SAFE_ACCEPTANCE = 0.65
# As many divergences as this halve a score.
_SAFE_DIVERGENCES = 0.02
# Values are ranked among so many.
_MOST_RANKS = 1000


class Trial(NamedTuple):
    """Consecutive transitions with one setting."""

    values: np.ndarray  # (chain, transition, quantity), the state before the first included
    work: np.ndarray  # (chain, transition), in operations
    acceptance_rate: np.ndarray  # (chain, transition)
    diverged: np.ndarray  # (chain, transition), whether the energy was lost


def quantities(latents: Mapping[str, np.ndarray]) -> np.ndarray:
    """The recorded variables as one array (chain, draw, quantity)."""
    columns = []
    for x in latents.values():
        x = np.asarray(x).reshape(*x.shape[:2], -1)
        columns += [np.real(x), np.imag(x)] if np.iscomplexobj(x) else [x.astype(float)]
    columns.sort(key=lambda x: x.shape[2])
    left, kept = MOST_QUANTITIES, []
    for i, x in enumerate(columns):
        share = max(1, left // (len(columns) - i))
        if x.shape[2] > share:
            x = x[:, :, np.linspace(0, x.shape[2] - 1, share).astype(int)]
        kept.append(x)
        left -= x.shape[2]
    return np.concatenate(kept, axis=2)


def scores(settings: Sequence[Sequence[Trial]]) -> list[float]:
    """Effective draws per operation, for each setting's trials.

    A low acceptance rate often means that some places are hardly ever left, and so do divergences.
    Trials are too short to see these places, so both count against a setting.
    """

    def mean(x: list[np.ndarray]) -> float:
        return float(np.mean([np.mean(np.nan_to_num(y)) for y in x]))

    def safety(trials: Sequence[Trial]) -> float:
        acceptance = mean([trial.acceptance_rate for trial in trials])
        diverged = mean([trial.diverged for trial in trials])
        return min(1.0, acceptance / _SAFE_ACCEPTANCE) ** 2 / (1 + diverged / _SAFE_DIVERGENCES)

    return [
        fraction * safety(trials) / mean([trial.work for trial in trials])
        for fraction, trials in zip(effective_fractions(settings), settings, strict=True)
    ]


def effective_fractions(settings: Sequence[Sequence[Trial]]) -> list[float]:
    """Effective draws per draw, for each setting's trials."""
    trials = [trial.values for some in settings for trial in some]
    every = np.concatenate([_rows(x) for x in trials])
    is_used = np.ptp(every, axis=0) > 1e-8 * np.max(np.abs(every), axis=0, initial=0.0)
    is_used &= np.all(np.isfinite(every), axis=0)
    if not np.any(is_used):
        return [0.0] * len(settings)
    trials = [x[..., is_used] for x in trials]
    centre = np.median(every[:, is_used], axis=0)
    scores = _normal_scores([np.concatenate([x, np.abs(x - centre)], axis=2) for x in trials])
    left = iter(scores)
    return [_effective([next(left) for _ in some]) for some in settings]


def _effective(trials: Sequence[np.ndarray]) -> float:
    """The harmonic mean of the worst quantities' fractions."""
    fractions = np.sort(_by_quantity(trials))
    worst = fractions[: max(_LEAST_WORST, int(_WORST * fractions.size))]
    return float(1 / np.mean(1 / worst))


def _by_quantity(trials: Sequence[np.ndarray]) -> np.ndarray:
    """The effective draws per draw of each quantity.

    Those of an autoregressive chain with the autocorrelation at a lag: the fewest over the lags up
    to the first where it is small. A slow component may hide behind a fast one at shorter lags, and
    at longer ones noise prevails.
    """
    longest = min(x.shape[1] for x in trials)
    found, lag = np.ones(trials[0].shape[-1]), 1
    is_correlated, falls = np.ones(found.shape, bool), np.ones(found.shape)
    while lag <= longest // 2:
        jumps = [0.5 * np.mean((x[:, lag:] - x[:, :-lag]) ** 2, axis=(0, 1)) for x in trials]
        # A mirror image earns no more than an independent draw.
        rho = np.clip(1 - np.mean(jumps, axis=0), 0.0, 1 - 1e-6)
        slowing = rho ** (1 / lag)
        smaller = np.where(is_correlated, np.minimum(found, (1 - slowing) / (1 + slowing)), found)
        falls, found = smaller / found, smaller
        is_correlated &= rho > _CORRELATED
        lag *= 2
    # Where a longer lag still gives less, the next would too.
    return np.where(is_correlated, found * falls, found)


def _normal_scores(trials: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Replace each value by the normal quantile of its rank among all trials, column by column.

    Ranks are compared, as in ArviZ's effective sizes, so that a heavy tail does not decide. Chains
    that stay where they are count once there.
    """
    from scipy.special import ndtri

    moved = [np.any(x[:, 1:] != x[:, :-1], axis=2) for x in trials]
    new = [x[:, 1:][is_new] for x, is_new in zip(trials, moved, strict=True)]
    reference = np.concatenate([*(x[:, 0] for x in trials), *new])
    some = np.linspace(0, len(reference) - 1, min(len(reference), _MOST_RANKS)).astype(int)
    reference = np.sort(reference[some].T, axis=1)
    by_rank = ndtri((0.5 * np.arange(2 * len(some) + 1) + 0.5) / (len(some) + 1))

    def scores(x: np.ndarray) -> np.ndarray:
        ranks = [_rank_sums(known, own) for known, own in zip(reference, _rows(x).T, strict=True)]
        return by_rank[np.stack(ranks, axis=1)].reshape(x.shape)

    return [scores(x) for x in trials]


def _rank_sums(known: np.ndarray, own: np.ndarray) -> np.ndarray:
    """How many known values are less, plus how many are not greater; a tie counts once."""
    less = np.searchsorted(known, own)
    return 2 * less + (known[np.minimum(less, len(known) - 1)] == own)


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])
