"""What all pictures share: the figure, colours that colour-blind people tell apart, and labels that fit."""

import io
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from dpgb_dask.display import seen
from dpgb_dask.released.explain.terms import AND

NO_MATPLOTLIB = "Pictures need matplotlib: pip install 'dpgb_dask[viz]'."
# Okabe and Ito's palette, without the yellow on a light background and the dark blue on a dark one
ON_LIGHT = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
GREY = "#8C8C8C"
HUGE = 1e290  # far below what matplotlib's own sums and ticks overflow at
LABEL = 26  # most characters of a label on an axis …
TITLE = 36  # … and of a panel's title


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure in matplotlib's current style; notebooks show it though pyplot does not know it.

    Raises
    ------
    ImportError
        If matplotlib is missing; the message names the extra.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ImportError(NO_MATPLOTLIB) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Any) -> bytes:
    """Return a picture for a notebook, of at most 256 colours: a third as large, as notebooks are kept with theirs."""
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    picture = Image.open(drawn)
    if picture.getchannel("A").getextrema() != (255, 255):  # a clear background stays clear
        return drawn.getvalue()
    picture.convert("RGB").quantize(256).save(out, "png", optimize=True)
    return out.getvalue()


def is_dark(axes: Any) -> bool:
    """Return whether a picture has a dark background: its text is light."""
    red, green, blue = _rgb(axes.xaxis.label.get_color())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5


def _rgb(color: Any) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb  # noqa: PLC0415 - optional

    return to_rgb(color)


def palette(axes: Any) -> tuple[str, ...]:
    """Return six colours for lines."""
    return ON_DARK if is_dark(axes) else ON_LIGHT


def up_and_down(axes: Any) -> tuple[str, str]:
    """Return the colours of what raises a score and of what lowers it."""
    colors = palette(axes)
    return colors[5], colors[0]


def dress(axes: Any, title: str = "") -> None:
    """Give axes their title and thin frame, and ticks colours that stay when the style's context ends."""
    import matplotlib as mpl  # noqa: PLC0415 - optional

    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(
        axis="x", color=mpl.rcParams["xtick.color"], labelcolor=axes.xaxis.label.get_color()
    )
    axes.tick_params(
        axis="y", color=mpl.rcParams["ytick.color"], labelcolor=axes.yaxis.label.get_color()
    )
    axes.tick_params(labelsize="small")


def plain(text: object, most: int = LABEL) -> str:
    """Return a label that fits, of which matplotlib takes nothing for a formula.

    The middle of a longer one is replaced by "…": names of a kind often differ at their end alone.
    """
    whole = str(text)
    if len(whole) > most:
        begin = most // 2
        whole = f"{whole[:begin]}…{whole[begin + 1 - most :]}"
    return seen(whole).replace("$", r"\$")


def in_legend(label: str) -> str:
    """Return a label for a legend: matplotlib leaves out what is empty or begins with "_"."""
    return f" {label}" if label[:1] in ("", "_") else label


def plain_term(features: Sequence[str], name: str, most: int = LABEL) -> str:
    """Return the label of a term; each feature of a pair is shortened by itself."""
    if len(features) < 2 or len(name) <= most:
        return plain(name, most)
    one, other = features
    room = most - len(AND)
    first = max(room // 2, room - len(other))
    return f"{plain(one, first)}{AND}{plain(other, room - min(len(one), first))}"


def power_of(values: Iterable[float]) -> float:
    """Return the power of ten that an axis divides all its values by: 1, unless matplotlib would overflow on them."""
    most = max(map(abs, values), default=0.0)
    return 10.0 ** math.floor(math.log10(most)) if HUGE <= most < math.inf else 1.0


def in_power(text: str, power: float) -> str:
    """Return the label of an axis, with the power of ten that its values were divided by."""
    return text if power == 1 else f"{text}{', ' if text else ''}in {power:g}"


def thinned(n: int, most: int) -> list[int]:
    """Return at most ``most`` of the positions 0, …, n - 1, first and last among them, none nearer than the others."""
    if n <= most:
        return list(range(n))
    step = -(-(n - 1) // (most - 1))
    return [*range(0, n - step, step), n - 1]


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return ends of an axis that shows all values, zero, and some room."""
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room
