"""Pictures of models, of single predictions and of budgets, by matplotlib (the extra ``viz``).

Each function returns a ``matplotlib.figure.Figure`` and leaves no state of pyplot behind. Fonts and backgrounds are
those of matplotlib's current style, so that ``with plt.style.context("dark_background"): …`` gives a dark picture.
"""

from dpgb_dask.plots.budget import plot_budget
from dpgb_dask.plots.model import plot_model
from dpgb_dask.plots.row import plot_row

__all__ = ["plot_budget", "plot_model", "plot_row"]
