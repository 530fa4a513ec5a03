"""Prices and curves: (ε, δ) to μ and back, and the noise that a price buys.

- μ-GDP and its exact curve δ(ε) = Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2): Dong, Roth and Su, *Gaussian Differential
  Privacy* (JRSS B 2022), corollary 2.13; Balle and Wang (2018). μ² adds up under composition
  (docs/privacy.md P4).
- A filter that stops at Σμ² <= μ_total² keeps the same curve when queries and noise are chosen adaptively: Smith and
  Thakurta (arXiv 2210.17520); Koskela, Tobaben and Honkela (arXiv 2209.15596).
- ρ-zCDP with ρ = μ²/2, printed beside it: Bun and Steinke (2016); the conversion is Canonne, Kamath and Steinke (2020),
  proposition 12.

**Why the discrete Gaussian may be charged as a Gaussian** (docs/privacy.md P3). Adding a rounded Gaussian to integers
is rounding their sum with a Gaussian: post-processing. The discrete Gaussian of parameter σ >= 4 is within total
variation 5·10⁻⁴/σ⁴ of the rounded Gaussian of variance σ² - 1/12: with D = d/dn, rounding is the operator
sinh(D/2)/(D/2) = exp(D²/24 - D⁴/2880 + …) on the density, a variance smaller by 1/12 is exp(-D²/24), and what is left,
-D⁴/2880, has total variation E|He₄(Z)|/5760/σ⁴ = 4.863·10⁻⁴/σ⁴ (tests/controller/test_accounting.py compares it with
sums over all integers). So a fit that releases N values is within τ = N·5·10⁻⁴/σ⁴ of a Gaussian mechanism with μ² =
Δ²/(σ² - 1/12), and δ(ε) <= δ_Gauss(ε) + (1 + e^ε)·τ. A share `SLACK` of every δ is reserved for the last term, and μ is
computed from the rest.

**What else may be charged in μ²** (docs/privacy.md P8). With L(u) = ln Φ(u)/Φ(-u), which is odd, and convex for u >= 0:

- ε-differential privacy is μ-GDP with L(μ/2) = ε: its trade-off curve is two chords, which meet G_μ on the diagonal
  (Dong, Roth and Su 2022, proposition 2.12's fixed point; Wasserman and Zhou 2010 for the curve).
- An ε-bounded-range choice is μ-GDP with L(μ/2) = ε/2. Its losses lie in [t - ε, t] for some t, so its curve has a
  kink at errors a, b with L(x) + L(y) = ε, where x, y = Φ⁻¹(1-a), Φ⁻¹(1-b), and lies above G_{x+y}. For x, y >= 0,
  convexity gives L((x+y)/2) <= ε/2. For x < 0 < y, L(y - |x|) <= L(y) - L(|x|) = ε since L is superadditive, and
  2L((x+y)/2) <= L(x+y) <= ε. So x + y <= μ (Dong, Durfee and Rogers 2020 for the two-point law).
- Where the filter keeps s of μ² for what follows, the choice costs p with 1/p = 4/ε² - 1/s: nearly ε²/4 instead of
  nearly (π/8)ε², as later noise hides the kink.

Prices are integers in units of 2⁻⁶⁴ of the plan's currency, μ² or ε: rounded up when charged, down when granted.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from dpgb_dask.contracts.queries import PRICE_ONE
from dpgb_dask.display import exact
from dpgb_dask.errors import PlanError

SLACK = Fraction(1, 1000)  # share of δ reserved for the distance of discrete to rounded Gaussian
MIN_SIGMA_BITS = 20  # noise is at least 2**20 steps: τ <= 1.1e-19 for a whole fit
MAX_SIGMA_BITS = 32  # more would push scaled sums towards 2**62
MIN_T_BITS = 20  # Laplace noise is at least 2**20 steps: rounding t costs less than 1e-6 of a price
MAX_VALUES = 1 << 28  # released values per fit
DISTANCE = 5e-4  # total variation to the rounded Gaussian, times σ⁴
MOST_SHARED_PRICE = (
    12 * PRICE_ONE
)  # of a choice beside which later noise counts (docs/privacy.md P8)
# a choice by itself costs at most π/2 of its price beside later noise
ALONE = Fraction(11, 7)

_CURVE_ERROR = 1e-12  # generous bound on the curve's relative error in double precision
_SQRT2 = math.sqrt(2.0)


def _mills(x: float) -> float:
    """Return Φ(-x)/φ(x) for x >= 0, to about 1e-13."""
    if x < 20:
        return 0.5 * math.erfc(x / _SQRT2) * math.exp(0.5 * x * x) * math.sqrt(2 * math.pi)
    ratio = x  # Laplace's continued fraction x + 1/(x + 2/(x + 3/…)) converges fast out here
    for term in range(40, 0, -1):
        ratio = x + term / ratio
    return 1 / ratio


def delta_of(mu: float, epsilon: float) -> float:
    """Return the least δ for which μ-GDP gives (ε, δ)-DP, rounded up.

    The second term of the curve is written φ(a)·Mills(b), with e^ε φ(b) = φ(a): nothing overflows.
    """
    if mu == 0:
        return 0.0
    a = epsilon / mu - mu / 2
    b = a + mu
    first = 0.5 * math.erfc(a / _SQRT2)
    second = math.exp(-0.5 * a * a) / math.sqrt(2 * math.pi) * _mills(b)
    return min(1.0, max(first - second, 0.0) + _CURVE_ERROR * first)


def _edge(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return the two neighbouring floats, none negative, between which ``holds`` changes from true (at 0) to false."""
    good, bad = 0.0, 1.0
    while holds(bad):
        good, bad = bad, 2 * bad
        if math.isinf(bad):
            return good, bad
    if good == 0.0:  # relative precision also for tiny numbers
        low = 0.5
        while low > 0 and not holds(low):
            bad, low = low, low / 2
        good = low
    while good < (middle := good + (bad - good) / 2) < bad:
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good, bad


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ for which μ-GDP gives (ε, δ)-DP, rounded down."""
    return _edge(lambda mu: delta_of(mu, epsilon) <= delta)[0]


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε for which μ-GDP gives (ε, δ)-DP, rounded up."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return _edge(lambda epsilon: delta_of(mu, epsilon) > delta)[1]


def zcdp_epsilon(mu: float, delta: float) -> float:
    """Return an ε at δ from ρ-zCDP with ρ = μ²/2 alone; larger than the GDP ε, but discrete Gaussians need no slack.

    ε = min over α > 1 of ρα + ln((α-1)/α) - (ln δ + ln α)/(α-1); every α is valid, so the search need not be exact.
    """
    rho = mu * mu / 2
    if rho == 0:
        return 0.0

    def at(t: float) -> float:
        gap = math.exp(t)  # α - 1
        alpha = 1 + gap
        return rho * alpha + math.log(gap / alpha) - (math.log(delta) + math.log(alpha)) / gap

    low, high = -20.0, 60.0
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(150):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return max(0.0, at((low + high) / 2))


def total_price(epsilon: float, delta: float, *, pure: bool = False) -> int:
    """Return the total price that (ε, δ) allows: ⌊2⁶⁴ μ²⌋, with `SLACK` of δ reserved, or ⌊2⁶⁴ ε⌋ for a pure plan.

    Raises
    ------
    PlanError
        If δ is 0 and the plan is not pure, or μ (or ε) is below 10⁻⁶: the noise would not fit into the integers.
    """
    if delta == 0 and not pure:
        raise PlanError(
            "delta=0 must be strictly between 0 and 1: only recipes of pure differential privacy, such as 'dpboost',"
            " need none."
        )
    amount = epsilon if pure else mu_of(epsilon, delta * float(1 - SLACK))
    if amount < 1e-6:
        what = f"epsilon={exact(epsilon)}" + ("" if pure else f" with delta={exact(delta)}")
        name = "epsilon" if pure else "mu"
        raise PlanError(
            f"{what} leaves nothing to release ({name}={amount:.1g}, at least 1e-06). "
            "Choose a larger epsilon."
        )
    return int(Fraction(amount) ** (1 if pure else 2) * PRICE_ONE)


def zcdp_mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ for which (μ²/2)-zCDP gives (ε, δ)-DP by `zcdp_epsilon`, rounded down."""
    return _edge(lambda mu: zcdp_epsilon(mu, delta) * (1 + 1e-9) <= epsilon)[0]


def mu_of_price(price: int) -> float:
    """Return μ = √(price / 2⁶⁴), for display."""
    return math.sqrt(price / PRICE_ONE)


def price(l2_squared: int, sigma: int) -> int:
    """Return ⌈2⁶⁴ Δ² / (σ² - 1/12)⌉: what one release costs."""
    return -(-12 * PRICE_ONE * l2_squared // (12 * sigma * sigma - 1))


def sigma_for(l2_squared: int, affordable: int) -> int:
    """Return the least integer σ >= 1 with ``price(l2_squared, σ) <= affordable``.

    price <= p ⇔ 12·2⁶⁴Δ² <= p (12σ² - 1) ⇔ 12σ² >= 1 + ⌈12·2⁶⁴Δ²/p⌉, since both sides are integers.
    """
    twelve = 1 - (-12 * PRICE_ONE * l2_squared // affordable)
    return math.isqrt(-(-twelve // 12) - 1) + 1


@lru_cache(maxsize=256)  # rounds of a stage ask the same
def scale_for(l2_squared: int, affordable: int, min_sigma_bits: int) -> tuple[int, int]:
    """Return the least public scale k >= 0 and σ for sums times 2ᵏ, such that σ >= 2**min_sigma_bits.

    Scaling by 2ᵏ multiplies the squared sensitivity by 4ᵏ and leaves the noise in natural units unchanged; it makes σ
    large in steps, and a large σ bounds the distance to the Gaussian.
    """
    scale = max(0, min_sigma_bits - sigma_for(l2_squared, affordable).bit_length())
    while (sigma := sigma_for(l2_squared << 2 * scale, affordable)) < 1 << min_sigma_bits:
        scale += 1
    return scale, sigma


def laplace_scale_for(l1: int, affordable: int) -> tuple[int, int]:
    """Return the least public scale k >= 0 and t for sums times 2ᵏ, such that t >= 2**`MIN_T_BITS`.

    The release is ε-DP with ε = l1·2ᵏ/t <= affordable/2⁶⁴; if t is large, rounding it up costs next to nothing.
    """

    def t_for(scale: int) -> int:
        return -(-((l1 << scale) * PRICE_ONE) // affordable)

    scale = max(0, MIN_T_BITS - t_for(0).bit_length())
    while (t := t_for(scale)) < 1 << MIN_T_BITS:
        scale += 1
    return scale, t


def logit_of_phi(u: float) -> float:
    """Return ln Φ(u)/Φ(-u) for u >= 0, to about 1e-13."""
    if u < 1:
        return 2 * math.atanh(math.erf(u / _SQRT2))
    # Φ(-u) = φ(u) · Mills(u) never underflows
    log_above = math.log(_mills(u)) - 0.5 * u * u - 0.5 * math.log(2 * math.pi)
    return math.log1p(-0.5 * math.erfc(u / _SQRT2)) - log_above


def choice_epsilon(price: int, after: int = 0) -> Fraction:
    """Return the bounded range ε of a choice that costs ``price`` in μ², rounded down (docs/privacy.md P8).

    Parameters
    ----------
    price : int
    after : int
        What the same fit is charged beyond it and everything before it; 0 for a choice by itself.
    """
    alone = 2 * logit_of_phi(math.sqrt(price / PRICE_ONE) / 2) * (1 - _CURVE_ERROR)
    if after <= 0 or price > MOST_SHARED_PRICE:
        return Fraction(alone)
    # ε² = 4ps/(p + s), in units of 2⁻¹⁶⁰
    square = (4 * price * after << 160) // ((price + after) * PRICE_ONE)
    return max(Fraction(alone), Fraction(math.isqrt(square), 1 << 80))


def mu_of_pure(epsilon: float) -> float:
    """Return the μ of an ε-differentially private mechanism, rounded up: 2Φ⁻¹(e^ε/(1 + e^ε)) (docs/privacy.md P8)."""
    return _edge(lambda mu: logit_of_phi(mu / 2) * (1 - _CURVE_ERROR) < epsilon)[1]


def mu_of_bounded_range(epsilon: float) -> float:
    """Return the μ of an ε-bounded-range choice, rounded up: 2Φ⁻¹(e^(ε/2)/(1 + e^(ε/2)))."""
    return mu_of_pure(epsilon / 2)


def distance(min_sigma_bits: int) -> float:
    """Return τ: total variation between all releases of a fit and their rounded Gaussians, rounded up."""
    return MAX_VALUES * DISTANCE * 2.0 ** (-4 * min_sigma_bits) * (1 + 1e-12)


def slack(epsilon: float, tau: float) -> float:
    """Return (1 + e^ε)·τ: what a distance of τ adds to δ at ε; 0 of no distance, whatever ε is."""
    if tau == 0:
        return 0.0
    return math.inf if epsilon > 700 else (1 + math.exp(epsilon)) * tau * (1 + 1e-12)


def min_sigma_bits_for(epsilon: float, delta: float) -> int:
    """Return b such that a σ of at least 2**b steps keeps a fit's slack within δ/1000.

    Where possible the slack is a thousandth of that, so that a thousand such fits can share one account.

    Raises
    ------
    PlanError
        If even 2**32 steps leave more slack than δ/1000: ε is too large to mean anything at this δ.
    """
    allowed = delta * float(SLACK)
    for bits in range(MIN_SIGMA_BITS, MAX_SIGMA_BITS + 1):
        if slack(epsilon, distance(bits)) * 1000 <= allowed:
            return bits
    if slack(epsilon, distance(MAX_SIGMA_BITS)) <= allowed:
        return MAX_SIGMA_BITS
    most = (
        math.log(allowed / distance(MAX_SIGMA_BITS)) if allowed > distance(MAX_SIGMA_BITS) else 0.0
    )
    way_out = f"Choose at most epsilon={math.floor(most)}" if most >= 1 else "Choose a larger delta"
    raise PlanError(
        f"epsilon={exact(epsilon)} is too large for delta={exact(delta)}: the noise could not be drawn finely enough "
        f"to prove it. {way_out}, or train without privacy."
    )
