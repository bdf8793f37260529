"""`diagnose`: describe how a run went, and what to do about its problems."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from coarea.arguments import check_draws

if TYPE_CHECKING:
    from xarray import DataTree

_RHAT = 1.01
_ESS_PER_CHAIN = 100
_CHAINS_LOOKED_AT = 128
_ELEMENTS_LOOKED_AT = 32
# R-hat is computed from thinned draws: about this many in all, but at least this many per chain.
_DRAWS_FOR_RHAT = 2**14
_DRAWS_OF_A_CHAIN = 1000
_FAILURES = 0.01
# Failed projections are rejections. Warm-up weighs them by what they cost.
_FAILED_PROJECTIONS = 0.25
_BFMI = 0.3
_LEAST_ACCEPTANCE = 0.01


class Finding(NamedTuple):
    """The result of one check: what was seen, and advice for the case that it is a problem."""

    name: str
    is_well: bool
    seen: str
    advice: str


class Diagnosis(NamedTuple):
    """All findings; printing it shows a sentence for each."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are problems."""
        return tuple(finding for finding in self.findings if not finding.is_well)

    @override
    def __str__(self) -> str:
        return "\n".join(
            f"{'ok ' if f.is_well else '!! '} {f.seen}" + ("" if f.is_well else f" {f.advice}")
            for f in self.findings
        )


def diagnose(draws: "DataTree") -> Diagnosis:
    """Check convergence, failures and energy; print the result to read it.

    >>> import coarea as co
    >>> model = co.Generator(lambda u: {"z": u["z"], "y": u["z"] ** 3 + u["n"]}, {"z": (), "n": ()})
    >>> draws = co.sample(co.condition(model, {"y": 1.5}))
    >>> [finding.name for finding in co.diagnose(draws).problems]
    []
    """
    check_draws(draws, "diagnose")
    stats = {str(name): x.values for name, x in draws["sample_stats"].data_vars.items()}
    findings = _weights(stats["weight"]) if "weight" in stats else _mixing(draws)
    findings += not_finite(draws)
    if "convergence_error" in stats:
        findings += _stuck(stats["acceptance_rate"])
        findings += _projections(stats["convergence_error"], stats["non_reversible_step"])
        # A failed trajectory also counts as divergent. It was reported above already.
        failed = stats["convergence_error"] | stats["non_reversible_step"]
        stats["diverging"] = stats["diverging"] & ~failed
    if "diverging" in stats:
        findings.append(
            _failures(
                stats["diverging"],
                "diverging",
                "of trajectories diverged in energy.",
                "The density changes faster than the step can follow; regions of high curvature "
                "may be missed. Use a higher target_acceptance, or rewrite the model so that its "
                "scales vary less.",
            )
        )
    if "energy" in stats:
        findings.append(_energy(stats["energy"][_looked_at(len(stats["energy"]))]))
    if "constraint_error" in stats:
        findings.append(_constraint(stats["constraint_error"]))
    if "distance" in stats:
        findings.append(_distance(stats["distance"]))
    return Diagnosis(tuple(findings))


def _projections(convergence_error, non_reversible_step) -> list[Finding]:
    return [
        _failures(
            convergence_error,
            "convergence_error",
            "of trajectories ended because a projection onto the manifold did not converge.",
            "They are rejected, so the draws stay exact, but the sampler avoids places where "
            "projections fail and mixes slowly near them. Use a higher target_acceptance, a "
            "smaller step_size, or more geodesic_steps.",
            _FAILED_PROJECTIONS,
        ),
        _failures(
            non_reversible_step,
            "non_reversible_step",
            "of trajectories ended because a step did not lead back to where it came from.",
            "The manifold bends more than the step can follow. Use a smaller step_size or more "
            "geodesic_steps.",
            _FAILED_PROJECTIONS,
        ),
    ]


def _weights(weight) -> list[Finding]:
    size = float(1 / np.sum(weight**2))
    return [
        Finding(
            "ess",
            size >= _ESS_PER_CHAIN,
            f"The weights leave {size:.0f} effective draws of {weight.size}.",
            f"Below {_ESS_PER_CHAIN} means cannot be relied on. Simulate more, or use a larger "
            "epsilon.",
        )
    ]


def _distance(distance) -> Finding:
    return Finding(
        "distance",
        bool(np.all(np.isfinite(distance))),
        f"The data are approximated: half of the simulations are within {np.median(distance):.2g} "
        f"of them, all within {np.max(distance):.2g}.",
        "A simulation that is not finite was accepted: use a smaller epsilon.",
    )


def _mixing(draws) -> list[Finding]:
    """R-hat and ESS of the worst element over all variables.

    The ESS is the smaller of that of means and of squares: neighbouring draws that are near mirror
    images have good means and poor variances. To take less time than the run, only some chains are
    used if there are very many, and only the elements that seem the worst.
    """
    from arviz_stats.base.array import array_stats

    num_chains, num_draws = (draws["sample_stats"].sizes[axis] for axis in ("chain", "draw"))
    looked_at = _looked_at(num_chains)
    apart = min(num_chains * num_draws // _DRAWS_FOR_RHAT, num_draws // _DRAWS_OF_A_CHAIN)
    worst_rhat, worst_ess = ("", -np.inf), ("", np.inf)
    drawn = draws["posterior"].data_vars or draws["inputs"].data_vars
    for name, variable in drawn.items():
        if not any(variable.values.strides[:2]):
            continue  # the same value in all draws
        x = variable.values[looked_at]
        x = x.reshape(*x.shape[:2], -1)
        if np.iscomplexobj(x):
            x = np.concatenate([x.real, x.imag], axis=-1)
        x = x if x.dtype == np.float32 else x.astype(float)
        x = x[..., np.all(np.isfinite(x), axis=(0, 1)) & _varies(x)]
        if x.shape[-1] == 0 or x.shape[1] < 4:
            continue
        x = x[..., _slowest(x)]
        with np.errstate(divide="ignore", invalid="ignore"):  # of chains that do not move at all
            rhat = np.max(array_stats.rhat(x[:, :: max(1, apart)], chain_axis=0, draw_axis=1))
        squares = (x - np.mean(x, axis=(0, 1))) ** 2
        sizes = [array_stats.ess(q, chain_axis=0, draw_axis=1) for q in (x, squares)]
        ess = np.min(sizes) * num_chains / len(x)
        worst_rhat = max(worst_rhat, (str(name), float(rhat)), key=lambda pair: pair[1])
        worst_ess = min(worst_ess, (str(name), float(ess)), key=lambda pair: pair[1])
    if not worst_ess[0]:
        return []  # no variable has elements that are finite and vary
    least = _ESS_PER_CHAIN * num_chains
    findings = [
        Finding(
            "ess",
            worst_ess[1] >= least,
            f"The smallest effective sample size, of means and squares, is {worst_ess[1]:.0f} "
            f"({worst_ess[0]}).",
            f"Below {least} (100 a chain) neither means nor R-hat can be relied on. Draw more.",
        ),
    ]
    if worst_rhat[0]:
        findings.insert(
            0,
            Finding(
                "rhat",
                worst_rhat[1] <= _RHAT,
                f"The largest R-hat is {worst_rhat[1]:.3f} ({worst_rhat[0]}).",
                "The chains do not agree yet, or sit in different modes. Draw more, and look at "
                "the chains one by one; a posterior in several pieces needs chains that start in "
                "each.",
            ),
        )
    return findings


def _stuck(acceptance_rate) -> list[Finding]:
    """A finding about the chains that hardly moved, if there are any."""
    stuck = np.flatnonzero(np.mean(acceptance_rate, axis=1) < _LEAST_ACCEPTANCE)
    if not stuck.size:
        return []
    return [
        Finding(
            "stuck",
            False,
            f"{stuck.size} of {len(acceptance_rate)} chains accepted almost no proposal (the first "
            f"is chain {stuck[0]}).",
            "Their draws are copies of where they started. Use a smaller step_size, a longer "
            "warmup, or other start points (start=…).",
        )
    ]


def not_finite(draws) -> list[Finding]:
    """A finding for each variable with NaN or infinite values."""
    seen = []
    for name, variable in draws["posterior"].data_vars.items():
        x = variable.values
        if np.issubdtype(x.dtype, np.inexact) and not np.all(np.isfinite(x)):
            bad = ~np.isfinite(x).reshape(*x.shape[:2], -1)
            elements = f" (in {np.sum(np.any(bad, axis=(0, 1)))} of its {bad.shape[2]} elements)"
            count = np.sum(np.any(bad, axis=2))
            seen.append(
                f"{name} is NaN or infinite in {count} of {bad.shape[0] * bad.shape[1]} draws"
                f"{elements if x.ndim > 2 else ''}."
            )
    return [
        Finding(
            "finite",
            False,
            sentence,
            "Its means and quantiles are not to be trusted. Look at what the model computes there: "
            "a logarithm or root of a negative number, a division by zero, an overflow.",
        )
        for sentence in seen
    ]


def _looked_at(num_chains: int) -> slice | np.ndarray:
    """The chains to check: all, or an even selection if there are very many."""
    if num_chains <= _CHAINS_LOOKED_AT:
        return slice(None)
    return np.linspace(0, num_chains - 1, _CHAINS_LOOKED_AT).astype(int)


def _slowest(x):
    """The elements whose batch means vary most, at most `_ELEMENTS_LOOKED_AT` of them."""
    num_chains, num_draws, num_elements = x.shape
    if num_elements <= _ELEMENTS_LOOKED_AT:
        return slice(None)
    length = max(1, round(num_draws**0.5))
    stretches = x[:, : num_draws // length * length].reshape(num_chains, -1, length, num_elements)
    spread = np.var(np.mean(stretches, axis=2), axis=(0, 1)) / np.var(x, axis=(0, 1))
    return np.argsort(spread)[-_ELEMENTS_LOOKED_AT:]


def _varies(x):
    """Which elements vary by more than rounding; exactly observed elements do not."""
    return np.ptp(x, axis=(0, 1)) > 1e-8 * np.max(np.abs(x), initial=0.0, where=np.isfinite(x))


def _failures(failed, name, seen, advice, bearable: float = _FAILURES) -> Finding:
    rate = np.count_nonzero(failed) / failed.size
    return Finding(name, rate <= bearable, f"{rate:.2%} {seen}", advice)


def _energy(energy) -> Finding:
    """The energy fraction: how much one refreshment of the momentum changes the energy."""
    from arviz_stats.base.array import array_stats

    varies = np.ptp(energy, axis=1) > 0
    fractions = array_stats.bfmi(energy[varies], chain_axis=0, draw_axis=1) if varies.any() else []
    fraction = float(np.min(fractions, initial=np.inf))
    return Finding(
        "energy",
        fraction >= _BFMI,
        f"The smallest energy fraction (BFMI) is {fraction:.2f}.",
        "Momentum refreshment moves the energy too little to reach the tails. Rewrite the model "
        "with lighter tails, or draw more.",
    )


def _constraint(error) -> Finding:
    largest = float(np.max(error))
    return Finding(
        "constraint_error",
        largest <= 1e-3,
        f"The data are reproduced to {largest:.0e} of their size in every draw.",
        "Too coarse to call exact: use precision='float64' or a smaller tolerance.",
    )
