"""A workbench for one question: how well will this data-parallel training scale?

Data flows one way, and each module may import only those above it:

    units         US, MS, MIB, GBIT; numbers as people read them
    tables        the columns of every table, and check()
    checks        what callers pass: numbers, workers, callables
    progress      a bar for what takes long
    intervals     unions and overlaps of half-open spans
    readers       one file a format: bytes -> EVENTS or MEASUREMENTS
    files         which files a path names, archives included
    clocks        ranks on one axis of time
    cache         decoded traces kept as Parquet, found again by content
    ranks         one file: its reader, its events, its rank
    traces        Run, load_run, read_events, read_measurements
    iterations    EVENTS -> ITERATIONS, COLLECTIVES, GRADIENTS, MEASUREMENTS
    lanes         what ran where in one iteration, span by span
    crosscheck    our breakdown beside HTA's and TraceLens'
    costs         Link, Ring, Tree, ...: what a message costs
    nccl          what NCCL itself expects, a prior where nothing is timed
    fitting       screening, regression, regimes, bands, residuals, choices: the parts of fits
    fits          MEASUREMENTS -> Fit; choose, next_measurement
    grouping      ways of cutting the backward order into messages
    policies      what each framework sends in one message
    fusion        which gradients travel in one message
    settings      plain settings of the frameworks, and the text to paste
    schedules     Scenario, queues, replay, jitter, explanation, export: the parts of timeline
    timeline      Scenario, schedule, predict, sweep: OSF itself
    recorded      a run's own scenario, or why it tells none
    evidence      a recording's numbers beside independent ones
    scaling       strong and weak scaling
    sharded       reduce-scatter and all-gather in place of all-reduce
    optimum       optimal_fusion, headroom, recommend
    remedies      what one may change, each with its own cost: the parts of whatif
    whatif        the optimisations; compare, ablate
    sensitivity   which input moves the scaling factor most
    draws         scaling factors of draws of the link and of compute
    uncertainty   band, knee, and where a forecast extrapolates
    pollux        iterations over placements: OSF, and the model of Pollux
    validation    predicted beside measured, on published runs
    gain          what adaptive fusion gains over a constant buffer
    published     the public runs of data/published, all at once
    study         predicted beside measured on emulated networks: data/runs/study
    factors       what degrades scaling, one factor at a time
    claims        what papers claim, and what we compute beside it
    parameters    what a notebook was run with; a name it does not know is an error
    notebooks     execute a notebook, each in a kernel of its own
    drawing       sizes, colours, receipts and every draw_*: the parts of figures
    figures       paper, save, draw_*
    widgets       sliders, a picture, and buttons that work: the parts of explore
    explore       explore_*: the same figures with sliders
    pages         notebooks as HTML that moves without a kernel, and a gallery of their figures
    capture       record a run and the price of its all-reduces

Nothing is re-exported here: `from workbench.traces import load_run`.
"""
