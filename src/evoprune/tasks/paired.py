"""Whether two functions differ, from results paired by seed: Student's paired t-test, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t-test that the differences' mean is 0.

    None where there is nothing to test: fewer than two differences, or all equal but not 0 (their spread,
    which the test compares the mean with, cannot be told from so few). All 0 is no difference: 1.
    """
    if len(differences) < 2:
        return None
    mean, deviation = fmean(differences), stdev(differences)
    if deviation <= 1e-12 * max(map(abs, differences)):
        return None if any(differences) else 1.0
    freedom = len(differences) - 1
    t = mean / (deviation / math.sqrt(len(differences)))
    # P(|T| > t) of Student's distribution is a regularised incomplete beta function.
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def holm(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's step-down correction of p-values for their number; what is None stays so and does not count."""
    tested = sorted((value, name) for name, value in values.items() if value is not None)
    corrected: dict[str, float | None] = dict.fromkeys(values)
    least = 0.0
    for rank, (value, name) in enumerate(tested):
        least = max(least, min(1.0, value * (len(tested) - rank)))
        corrected[name] = least
    return corrected


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction below converges fast on the other side
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # Lentz's method for the continued fraction; `tiny` keeps a denominator from being 0.
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for numerator in (even, odd):
            d = 1 / (1 + numerator * d or tiny)
            c = 1 + numerator / c or tiny
            change = c * d
            fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a
