"""A workbench for one question: how well will this data-parallel training scale?

Data flows one way, and each module may import only those above it:

    units         US, MS, MIB, GBIT; numbers as people read them
    tables        the columns of every table, and check()
    checks        what callers pass: numbers, workers, callables
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
    screening     which MEASUREMENTS are fitted, and why the others are set aside
    estimates     regression: parameters from 0 up, with honest intervals
    regimes       where the price of a hop changes: breakpoints, floor, node boundary
    bands         what a fit says of times not measured, and draws
    card          what a fit found and how far to trust it, to read
    fits          MEASUREMENTS -> Fit
    diagnostics   curves with their bands, and residuals
    slowdown      how much slower compute runs beside communication
    choices       which cost fits best
    measuring     what to time next
    grouping      ways of cutting the backward order into messages
    policies      what each framework sends in one message
    fusion        which gradients travel in one message
    settings      plain settings of the frameworks, and the text to paste
    jitter        how much later the slowest of n workers is
    scenario      Scenario, and what it refuses
    replay        compute and messages event by event
    queues        when messages run: in one queue, or in several that share the link
    grid          the combinations of a sweep, in blocks
    explain       a timeline step by step
    export        what was predicted as a run would be recorded
    timeline      Scenario, schedule, predict, sweep: OSF itself
    scaling       strong and weak scaling
    sharded       reduce-scatter and all-gather in place of all-reduce
    optimum       optimal_fusion, headroom, recommend
    priority      priority scheduling with partition (P3, ByteScheduler)
    adjusted      a cost as optimisations change it
    workloads     faster compute, larger batches, fewer messages
    optimising    what one may change, each with its own cost
    whatif        compare, ablate
    sensitivity   which input moves the scaling factor most
    draws         scaling factors of draws of the link and of compute
    uncertainty   band, knee, and where a forecast extrapolates
    pollux        iterations over placements: OSF, and the model of Pollux
    validation    predicted beside measured, on published runs
    gain          what adaptive fusion gains over a constant buffer
    style         sizes, colours and axes that figures share
    receipts      save: a figure with its data and its receipt
    fit_figures   draw_fit and the residuals that judge it
    advice_figures  draw_comparison, draw_fusion_curve, draw_sensitivity, draw_forecast
    run_figures   draw_run: one iteration of a rank, stream by stream
    figures       paper, save, draw_*
    validation_figures  draw_parity, draw_gain
    step_figures  draw_step: the timeline up to a message
    widget        sliders, a picture, and buttons that work
    fit_widget    explore_fit: line, residuals and card move together
    scenario_widget     sliders of a link, a fusion and workers
    step_widget   explore_steps: the timeline message by message, in words
    run_widget    explore_run: rank, iteration and stream to pick, and zoom
    advice_widget  explore_whatif, explore_fusion
    explore       explore_*: the same figures with sliders
    capture       record a run and the price of its all-reduces

Nothing is re-exported here: `from workbench.traces import load_run`.
"""
