"""Figures with sliders: how does the forecast change on another link, bucket size or cluster?

    explorer = explore_scaling(scenario)
    explorer.scenario        # the scenario of the sliders' positions, for the next cell
    explorer.code()          # Python text that draws the same picture
    explorer.state()         # positions of the controls; restore(state) and reset() set them
    explorer.static().save("page.html")  # a few positions as HTML that needs no Python

A widget neither computes nor draws: it turns sliders into a Scenario, `timeline` predicts and
`figures` draws. Buttons save the figure, reset the controls and copy the code. All controls work
by keyboard.
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
