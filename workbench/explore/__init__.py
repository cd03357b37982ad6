"""The figures with sliders: what becomes of the forecast on another link, bucket or cluster?

A widget neither computes nor draws: it turns sliders into a Scenario, asks `timeline` for the
prediction and `figures` for the picture. `explorer.scenario` is the scenario of the sliders'
present positions, to go on with in the next cell.

Every explorer has buttons to save the figure, to reset the controls and to copy its code, and
`state()` and `restore(state)`: where its controls stand; `reset()`; `code()`: Python text that
makes the same picture from what was given; `static()`: HTML of a few positions that needs no
kernel, and `static().save("page.html")`.
"""

from .explorer import static_of
from .fits import explore_fit
from .forecast import explore_scaling, explore_timeline
from .fusion import explore_fusion
from .runs import explore_run
from .steps import explore_steps
from .whatif import explore_whatif

__all__ = [
    "explore_fit",
    "explore_fusion",
    "explore_run",
    "explore_scaling",
    "explore_steps",
    "explore_timeline",
    "explore_whatif",
    "static_of",
]
