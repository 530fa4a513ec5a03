"""Newton steps of leaves, of one score or of several classes together."""

import numpy as np
from numpy.typing import NDArray

# of d/Σd in each repetition of the fixed point for the Hessian of several classes; without noise the first is at most ½
LARGEST_SHARES = (0.5, 0.95, 0.95, 0.95)


def joint_hessian(hess: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return d of the Hessian diag(d) - dd'/Σd of several classes, whose diagonal is h.

    Gradients of several classes add up to 0, and so does every row of their Hessian. So d = h/(1 - d/Σd), which is
    solved by a few repetitions from h/Σh for d/Σd: exact for two classes and for classes that are alike, and otherwise
    a step is at most 1.25 times as long as it should be. By h alone it is up to twice.

    Parameters
    ----------
    hess : (…, n_scores) float64
    """
    d = hess
    for largest in LARGEST_SHARES:
        total = np.maximum(d.sum(-1, keepdims=True), 1e-9)
        d = hess / (1 - np.minimum(d / total, largest))
    return d


def newton_steps(
    grad: NDArray[np.float64], hess: NDArray[np.float64], ridge: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Newton steps of leaves from their sums, and how far each moves against a unit of noise.

    Parameters
    ----------
    grad, hess : (n_leaves, n_scores) float64
    ridge : float
        Above 0.

    Returns
    -------
    step : (n_leaves, n_scores) float64, score units
    reach : (n_leaves, n_scores) float64
        Standard deviation of a step where all sums of the leaf's gradients have one of 1.
    """
    n = grad.shape[1]
    if n == 1:
        return -grad / (hess + ridge), 1 / (hess + ridge)
    d = joint_hessian(hess)
    # by Sherman and Morrison the inverse of diag(d + ridge) - dd'/Σd is diag(own) + qq'/rest
    own = 1 / (d + ridge)
    q = d * own
    rest = np.maximum((q * ridge).sum(1, keepdims=True), 1e-9)
    centred = grad - grad.mean(1, keepdims=True)
    apart = q - q.mean(1, keepdims=True)
    step = -own * centred - q * (apart * centred).sum(1, keepdims=True) / rest
    squared = own**2 * (1 - 1 / n) + 2 * own * q * apart / rest
    squared += (q / rest) ** 2 * (apart**2).sum(1, keepdims=True)
    return step, np.sqrt(np.maximum(squared, 0))
