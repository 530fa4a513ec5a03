"""Every constant of `auto` that was tuned, with its reason: the same for every data set, never tuned on a test split.

They were measured on development data, with ε from .1 to 8: docs/default-method.md §7.
"""

import numpy as np

# ---- bins
COUNT_SHARE = 0.002  # for a rough row count, which chooses the grid; an error of 1 % does no harm
BINS_SHARE = 0.10  # 5 % loses .005 AUC on adult at ε = 1, 20 % is flat
# from so many noisy rows per standard deviation of a cell on, a grid of so many uniform cells: on finer ones a bin
# spans many noisy cells (at a signal of 10 to 30, 256 cells leave 2 to 5 bins), on coarser ones detail is lost: with
# 256 cells up to 1,500, RMSE of bike, two of whose features are counts with long tails, is 1.2 to 1.6 times as large
GRID_SIGNALS = {16: 0.0, 32: 14.0, 64: 28.0, 128: 57.0, 256: 200.0, 512: 250.0, 1024: 800.0}
# below so many noisy rows per standard deviation of a cell, were there one feature alone, counts tell little but noise,
# and bins would be where it puts them: so counts move towards rows that spread evenly, and keep at least the second
# number of how they deviate from that. With more rows, hundreds of features of noise come alive
EVEN_SIGNAL, LEAST_KEPT = 12.0, 0.01
COARSE_BINS, FINE_BINS = 128, 250  # wanted bins, the latter on the finest grid; codes are uint8
ATOM_SD = 4.0  # a cell is an atom (zero, a round value) if it exceeds its neighbours by 4 standard deviations …
ATOM_SHARE = 0.0015  # … and by this share of all rows …
ATOM_RATIO = 3.0  # … and holds three times what its neighbours do: +.004 AUC on adult
# a bin's mass must exceed this many standard deviations of its own noise: 3 loses .007 on adult; on grids of fewer
# than 256 cells it may be less, as the prior joins what noise divides: RMSE at ε = .1 on bike −9 %, cpu_act −3 %
MASS_SD, COARSE_MASS_SD = 1.5, 0.75
# if at most 3 cells hold .95 of a feature's known rows, they are counted in up to 128 finer ones for 5 % of μ², where
# that leaves a signal above the lowest of the grids; with .8, detail in the middle takes leaves from the tails (runqsz
# of cpu_act at ε = 1: RMSE +16 %)
CLOSER_SHARE, CLOSER_WINDOW, CLOSER_ROWS, CLOSER_CELLS = 0.05, 3, 0.95, 128
CLOSER_WIDTH = 1e-6  # of the bounds: a narrower window holds one value, such as zero
LAST_SHARE = 0.5  # a remainder with this share of the wanted mass becomes a bin of its own

# ---- start
# of what `Bins` left, for the base rate, or for each look at the residuals of a numeric target
START_SHARE = 0.01
START_LOOKS = 4  # at most, for the mean: each finds it within a fraction of its distance
NEAR = 0.5  # standard deviations of the target that the mean may move without another look
# octaves by which the spread may be uncertain without another look. Such a look, and one at a target in bounds that are
# far too wide, cost what makes all rows so many standard deviations of a cell's noise, but no more than this share
SETTLED_OCTAVES = 1.0
LOOK_SIGNAL, LOOK_SHARE = 100.0, 0.05
# edges an octave of a look, from so many standard deviations of a cell's noise in all rows on
LOOK_EDGES = {1: 0.0, 2: 100.0, 4: 200.0}
DEARER = 1.5  # a look at another price is due from so many times the former on
# log-odds of classes have a Laplace prior of this scale: rare classes are plausible
LOGIT_SCALE, LARGEST_LOGIT = 3.0, 9.0
# at the start, a third into the main effects, before pairs, before the forest
RESIDUAL_REFRESHES = 4
# from look to look residuals shrink by octaves with odds of ½ each, the second number at least, as the mean may have
# been found; and grow with odds of 1/16 each, the second number at least. Else noise may be taken for the target late
# in a fit: RMSE 145 instead of 2.5 (1,000 rows, ε = 1, bounds 100 times too wide, one fit in some twenty)
RESIDUAL_SHRINKS, RESIDUAL_GROWS = (0.5, 0.01), (1 / 16, 1e-6)
# a cell of residuals that deviates by fewer standard deviations from what their scale gives is not believed. There are
# over a hundred, and one far away decides the mean of a target in wide bounds: at 4, one fit in 500 starts far off
RESIDUAL_SD = 5.0
RESIDUAL_NEAR = 4  # … alone, or with as many on either side, in the finest cells
# few rows, of one of these shares, may lie around a distance of the law's scale times the first number or more, with
# these odds, which fall by the last with each octave (¼ loses fits in bounds far too wide). RMSE of cpu_act, of whose
# targets one in thirty is 0, at ε = 1 −16 % ± 8 %, of one with 4 % far below at .3, 1 −7 %, −9 %
FAR_ROWS = (0.005, 0.01, 0.02, 0.04, 0.08)
FAR_FROM, FAR_ODDS, FAR_DECAY = 4.0, 0.2, 0.1
# shares of the rows that may lie at the middle, apart from the law of the others, with their odds. Without them, wine
# at ε = .1 was worse than the constant in a sixth of all fits: two fifths of its targets are the number in the middle
RESIDUAL_ATOMS = {0.0: 0.5, 0.25: 0.25, 0.5: 0.25}
# odds of the middle of the bounds as the middle of a numeric target; other places share the rest evenly
MIDDLE_ODDS = 0.75
# residuals above are clipped; .9 is better on skewed targets, worse on the others
RESIDUAL_QUANTILE = 0.8
# and more widely, where clipping moves the mean of the residuals by more of their standard deviations: skewed targets
CLIP_BIAS = 0.1
# … or leaves more of their variance than this beyond the clip: few rows far away. Where 2 % each are 15 standard
# deviations of the others above and below, RMSE at ε = 1, 2, 8 −9 %, −32 %, −31 %. With .2 bike at 8 is 9 % worse. Not
# where all rows are fewer standard deviations of the noise on a cell than the second number: scales with a millionth of
# the odds have most of the variance there (200 rows in bounds 100 times too wide at ε = 1: RMSE twice as large)
CLIP_BEYOND, BEYOND_SIGNAL = 0.5, 40.0
# a clip is not below this share of the one before, or so many times the noise on a cell over the rows if that is less:
# noise may hide some rows far from the others. RMSE of cpu_act at ε = 1 −18 %; with the first number alone +5 % at 8
CLIP_KEPT, CLIP_HIDDEN = 0.5, 75.0
# of what chosen trees leave: there noise is small, and what a clip leaves out of the largest residuals is signal
CHOSEN_QUANTILE = 0.9
# the mean of the residuals, which clips hide, is released in the end, for what makes its noise this many standard
# deviations of the target, between these shares of what is left
MEAN_SD, MEAN_LOWEST, MEAN_SHARE = 0.01, 1e-4, 0.01
# … and is that of a law with this standard deviation, in those of the target: clips had left .04 to .2. Where noise
# could not be made less than half of that, it is not asked for: RMSE of a target without a tail at ε = .1 is 1.7 % more
MEAN_ERROR = 0.1
MEAN_LEAST = 1e-3  # of the whole price: what earlier stages may leave unspent
# a target of less spread than this, in half its range, is in bounds that are far too wide: looks for its mean are
# dearer, and an interaction worth finding is smaller in the same measure
WIDE_SPREAD = 0.1
# effects are in proportion to a spread below this, and so are their prior scales. With .1, RMSE of bike in bounds 10
# times too wide is 11 %, 25 % more at ε = 1, 8; with .8, of gas at .1 9 % more
USUAL_SPREAD = 0.4
NORMAL_SPREAD = 1.64  # clip bound over the standard deviation of what is clipped
CLIP = 0.5  # |g| <= 1/2 halves the sensitivity and stays Fisher-consistent: +.006 to +.016 AUC at ε = .1
# a: the Hessian is released as a · h; flat in [.25, 1], costs 3 % of the gradient's noise
HESS_SCALE = 0.5
# of a number, whose Hessian costs nothing, as rows beyond √(1 - a²) = .94 of the clip have none: with a clip's own
# Hessian at ½ noise is 12 % more, RMSE at ε = 1 on wine +1 to +2 %, cpu_act +30 %. Of normal residuals 23 % have none
# then, 20 % beyond the clip alone, 27 % at .5
NUMERIC_HESS_SCALE = 0.35

# several classes: the Hessian is taken to be this times w · p(1 - p), w the factor of the clip in norm, as the gradient
# of a clipped row hardly falls with its score. 1 learns too slowly (nursery at ε = 8: log-loss .27 for .24)
CLASS_CURVATURE = 0.5

# ---- which stages run
FOREST_SHARE = 0.3  # of 15 to 45 % none is better on all sets
# signal (`schedules.tree_signal`) from which it is grown: its trees are shrunk by their noise, and from 8 to 250 RMSE
# falls by 1 to 18 %, log-loss by up to 25 %, where features interact. Below, the AUC of pima falls by .12
FOREST_SIGNAL = 8.0
# (signal below, share of what the forest leaves)
PAIR_SHARES = ((0.2, 0.0), (5.0, 0.3), (np.inf, 0.5))
# an interaction worth finding, score units
# (twice for several classes, whose Hessian is taken at half)
PAIR_EFFECT = {"binary": 0.1, "multiclass": 0.2, "numeric": 0.05}
# … with residuals of a number clipped at this or more: else it is half a standard deviation in far too wide bounds, and
# tables of nothing but noise raise RMSE at ε = .1 by 3 % to 13 %
PAIR_LEAST_CLIP = 0.2
SCREEN_SHARE = 0.2  # share of the pairs' budget that screens the candidates
# an interaction worth finding is clear where its signal is this many times the variance of the screening's noise
PAIR_CLEAR = {"binary": 2.0, "multiclass": 2.0, "numeric": 50.0}
# … and likely, where it is so many times that: enough where rich data have pairs beside a forest of random trees alone
PAIR_LIKELY = {"binary": 0.5, "multiclass": 0.5, "numeric": 5.0}
# candidate pairs: noise grows with the square root of their number, so there are more only while that is clear
MAX_CANDIDATES, MOST_CANDIDATES = 200, 400
PAIR_CELLS = 6  # each feature of a pair is coarsened to at most 6 bins …
# … and to twice as many in a kept table whose evidence in the screening is e to this or more. `additive` at ε = 4: bike
# −10 %, maps of two features −23 %; from 5 on covtype gains more, others at 1 lose up to 1 %, as all do without a limit
FINE_CELLS, FINE_EVIDENCE = 2 * PAIR_CELLS, 10.0

# ---- linear effects
# of the main effects' share, times the share of the features that are numeric: with .1, abalone and bike gain 1 to 4 %
# less at ε = 1
LINEAR_SHARE = 0.3
LINEAR_PRODUCTS = 0.25  # of it, for how features vary together
LINEAR_ROUNDS = 4
LINEAR_RATE = 0.8
# rows have this many times the mean squared norm at most; larger ones are scaled down
LINEAR_NORM = 1.5
# noise would hide how features vary, a third each, where it is more than this: sets of some thousand rows at ε = .1.
# With 1.5, RMSE of bike at ε = .1 is 14 % more, of others level
LINEAR_HIDDEN = 0.5
# no direction's variance counts as less: rows are seen at most 32 times as far apart as they are
LINEAR_SPREAD = 1e-3
# the largest prior scale of a coefficient, score units for a spread of 1; half of it for a numeric target
LINEAR_SCALE = 0.5

# ---- main effects and pairs
# 10 lose up to .01 AUC, 40 gain nothing there; of numbers 28 gain 3 to 6 % in RMSE where effects are large (bike), as
# each moves by little more than the clip
MAIN_ROUNDS = {"binary": 20, "multiclass": 20, "numeric": 28}
PAIR_ROUNDS = 15
DAMPING = 0.4  # all features move at once: .15 to .5 give the same accuracy, 1 overshoots
STEP = 2.0  # … but no further than this over the number of features that act as one, by the curvature of the last move
# of pairs: 2 / λ is where a move comes back as large, and softmax has directions with a larger λ than the last move's,
# along which few rounds end in the middle of a swing (cover_type at ε = 8: log-loss .59 → .64 in a round)
PAIR_STEP = {"binary": 2.0, "multiclass": 1.0, "numeric": 2.0}
# share of what is to be explained that the first move may be, were all features copies
FIRST_STEP = 0.5
LEAST_STEP = 0.01
# a curvature counts from so many standard deviations of its noise on; each round keeps this part of the earlier ones
STEP_SD, STEP_KEEP = 3.0, 0.7
# leaves = rows · Hessian / (25 · noise of the run): a leaf's step is mostly signal
LEAF_SIGNAL = 25.0
# a numeric feature with more bins is cut at so many places, and beside bins of this many times the mean bin's rows: the
# linear algebra of a table grows with the third power of the places
MOST_CUTS, HEAVY_BIN = 96, 2.0
# a leaf with this share of the rows is kept back: a row outside of it then counts once more, a row in it once less
HEAVY_LEAF = 0.5
# of the features: rows fall into at most so many blocks, or no leaf is kept back
FEWER_BLOCKS = 0.75
MIN_LEAVES, MAX_LEAVES = 6, 32  # 2 lose .06 AUC at large ε, all bins .01 to .02 at small ε
# averaged by evidence: +.005 AUC over a fixed one
PRIOR_SCALES = np.array([0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
FIRST_SCALE = np.array([0.4])  # before there is evidence
# of more features than these, as many are expected to have an effect: RMSE of 300 features of noise falls by 3 to 6 %
EFFECTS = 28
LENGTH = 0.3  # correlation length of neighbouring bins, in rank: flat between .2 and .5
SMOOTH_SHARE = 0.9  # share of the prior variance that is smooth; the rest is independent per bin
LARGEST_EFFECT = 5.0  # bound of a table entry, in score units
MEAN_HESS_STEP = 0.3  # how far a round moves the mean Hessian towards its noisy value
LEAST_HESS = 0.02  # lower bound of a bin's mean Hessian, as a share of the largest
# a pair's cell may hold this many times what independent features would give
PAIR_HESS_EXCESS = 20.0

# ---- forest
FOREST_ROUNDS, FOREST_BATCH = 20, 15  # 300 trees in 20 passes: a batch shares one gradient
# trees of a batch move what they share as often as there are trees: at most 1.5 times as far as it should, as from 2
# times on it grows from round to round
FOREST_RATE = 0.1
# for several classes, and after more than the fewest chosen trees: as many trees in so many times more rounds, at so
# many times the rate. As many a round at that rate: half of all fits of cover_type at ε = 1 diverge
FOREST_FASTER = 1.5
# places where chosen trees split a feature: they divide its noisy mass evenly. 16 levels are drawn and counted two
# features in a byte; for two classes and numbers twice as many tell more where the signal is strong: RMSE of bike at
# ε = 8 -14 %
TREE_LEVELS = {"binary": 32, "multiclass": 16, "numeric": 32}
# random trees may split at so many times as many, up to so many rows: that costs no noise, and steep places are met
# more closely. Log-loss and RMSE of 18 sets -1.2 % on average at ε = 8, -.2 % at 1 (twice as many -.9 %, -.2 %); but
# trees share fewer splits, and a fit of 11 M rows would take 7 % more CPU
FOREST_FINER, FINER_ROWS = 4, 1e6
# share of the splits drawn evenly over features; the rest follows released strength. With .2 RMSE of bike is 2 % more,
# 1 - AUC of higgs .5 %; without any, effects that no feature has alone are found less often
FOREST_EVEN = 0.1
# how much of a place's chance to be split at follows the difference of main effects across it, and not the rows beside
# it. With .3 RMSE of bike at ε = 8 is 9 % more, with .9 1 - AUC of magic 1 %
FOREST_BY_EFFECT = 0.6
# the forest's scale (§5): rows that are made up for it; of how far trees follow the noise of the rows, the part that
# counts (with 1, log-loss of letter at ε = 8 +2 %); the sd of what is expected, around 1 and around what leaves tell;
# the largest
MADE_ROWS = 8192
SCALE_OPTIMISM, SCALE_SD, LARGEST_SCALE = 0.5, 0.6, 3.0
# by rows: the share of the forest's price; cells for what the trees add; rows times trees that a pass looks at, and the
# fewest trees: a sample of them tells enough where there are many rows
SLOPE_SHARE = 0.03
SLOPE_CELLS = 16
# residuals are clipped for it at so many times the trees' clip, which trees of a skewed target are too short for: its
# RMSE on house_16h at ε = 1 -1.2 %, on cpu_act -4 %; with twice the clip -.8 %, -3 %
SLOPE_CLIP = 4.0
SLOPE_WORK, SLOPE_TREES = 1 << 25, 60
# the curvature of the real rows along the forest over that of rows that are made up, whose features are independent,
# and how far that is from true
MADE_CURVATURE = 0.75, 0.6
HESS_DRIFT = 0.3  # how far the mean Hessian after the forest is from what made-up rows expect
LARGEST_LEAF = 2.0  # bound of a Newton step before the rate
# the ridge of a leaf, in standard deviations of the noise on its Σh: 1 and 4 are 1 % worse at ε = .1
FOREST_RIDGE = 2.0

# ---- rich data: n̂ ĥ μ/c, the signal of all rows over the noise of one sum, decides (docs/default-method.md §4)
# from here on a larger forest replaces most of the pairs: at ε = 1 log-loss falls by 2 to 6 %, RMSE by 1 to 5 %, where
# features interact. Below, RMSE on wine rises by 2 to 3 %
RICH_SIGNAL = 100.0
# share of the main effects there: .7, as below, is worse by 1 % in log-loss, on kr_vs_kp at ε = 1 by 5 %; of numbers .6
# is better by 1 %, but RMSE on cpu_act at ε = 1 11 % more
RICH_MAIN = {"binary": 0.6, "multiclass": 0.6, "numeric": 0.7}
CHOSEN_MAIN, CHOSEN_MAIN_SIGNAL = 0.3, 1500.0  # at this signal, with its logarithm between
# and as little as this from a signal on: there noise in main effects costs nothing, but in trees. With .3 1 - AUC of
# covtype is 3 % to 5 % more, log-loss of nursery and letter at ε = 8 8 % and 4 %
LEAST_MAIN, LEAST_MAIN_SIGNAL = 0.1, 10_000.0
# of what they leave, for pairs, where an interaction would be clear, or likely if no trees are chosen (as above):
# without, products of two features are pieced together from trees (stress table plain at ε = 8: AUC -.006); of numbers,
# the gain is clear only at a high D
RICH_PAIRS = 0.15
RICH_FEWER_ROUNDS = 3  # times fewer rounds of pairs than elsewhere: as good, for a third of the CPU
# rounds of the forest, for the root of the signal, up to a number: less noise on a leaf's sum allows more steps. So 20
# at a signal of 100, 40 from 400 to 4,400 (times FOREST_FASTER where steps are fast); with more at once, AUC falls by
# .005 where features do not interact
RICH_GROWTH = ((2.0, 40), (0.6, 60))
# of them for a numeric target, but not fewer than elsewhere: its rows all have the Hessian 1, so its steps shrink less
NUMERIC_ROUNDS = 2 / 3
# depth of its trees by the signal: deeper ones gain nothing below, and leaves of fewer rows are noise. With 5 instead
# of 4 log-loss and RMSE at ε = .1 rise by .3 % (14 sets, 20 fits each), for 5 % more CPU
RICH_DEPTH, DEEP_SIGNAL = 6, 400.0
FOREST_DEPTHS = {4: 0.0, 5: 200.0, RICH_DEPTH: DEEP_SIGNAL}
NUMERIC_HESS = 0.10  # stands for the Hessian of a class in the signal of a numeric target
# from here on trees are chosen. Below, RMSE on wine rises by 1 to 2 %, log-loss of letter, nursery, magic by 2 to 10 %.
# With 1500 log-loss of penbased and nursery at ε = 3 is 9 %, 2 % to 13 % more, with 5000 that of covtype at 1 1.2 %,
# with 2200 RMSE of bike at 5 17 %; and what only three features together part is not found in 6,000 rows at 8
CHOSEN_FROM = {"binary": 1500.0, "multiclass": 2200.0, "numeric": 1500.0}
# of what the main effects leave. Random trees find more of numbers and several classes: with .8 RMSE of bike at ε = 4,
# 8 is 6 % and 4 % more, log-loss of letter 10 to 15 %; of two classes 1 - AUC of covtype at ε = 8 is 2 % more with .6
CHOSEN_SHARE = {"binary": 0.8, "multiclass": 0.5, "numeric": 0.5}
# trees, for the root of the signal, up to MOST_ROOT; where one for each CHOSEN_EACH of signal is more, that many. With
# √signal/5, up to 30, at their rate, log-loss and RMSE of 9 sets at ε = 4, 8 are 2 % and 1 % more (bike 9 %, 6 %), and
# without more at a strong signal 3 % on five made-up sets of 200,000 rows at ε = 8
CHOSEN_ROOT, MOST_ROOT = {"binary": 0.3, "multiclass": 0.4, "numeric": 0.4}, 40
CHOSEN_EACH = 560.0
# never more than this; nor than as many as make so much work, rows times trees, but for the first
MOST_CHOSEN = 120
CHOSEN_WORK, WORTH_WORK = 6e7, 30
CHOSEN_LEAF, CHOSEN_LEAF_SIGNAL = 30.0, 20.0  # a leaf has about this Σh, and this signal
CHOSEN_LEAST_DEPTH = 4
CHOSEN_GROUPS, GROUP_SIGNAL = 16, 1000.0  # the most groups of nodes; one for so much signal
CHOSEN_CHOICE_SHARE, CHOSEN_CENTRE_SHARE = 0.6, 0.1  # of a tree's price; the leaves have the rest
# of as many trees as a CHOSEN_FASTth of the signal's root, or fewer; of k times as many it is 1/√k of that
CHOSEN_RATE, CHOSEN_FAST = 0.7, 5.0
# splits that the chances of candidates before any tree count as, beside those of the trees so far: half a tree's.
# Without odds 1 - AUC of covtype is 3 % to 5 % more, log-loss of cover_type 1 % to 3 %
CHOSEN_ODDS = 32.0
# of these chances, what all features share alike; the rest is by strength, as in the forest
CHOSEN_EVEN = 0.5
# a larger slope of a node would raise the range of the choice more than it explains
CHOSEN_SLOPE = 0.25
CHOSEN_NODE_SD = 0.2  # standard deviation of the nodes' common steps, score units
# how the variance of effects falls from level to level; averaged by evidence
CHOSEN_DECAYS = (0.4, 0.8)
# stop if all trees, at the mean gain of the last 4, or of the last half if they are more, would gain less
CHOSEN_PATIENCE, CHOSEN_LEAST_GAIN = 4, 0.01
CHOSEN_OPTIMISM = 4.0  # splits are chosen on the rows whose leaf sums are released: with 1, noise-free trees overfit
# of each batch of the forest, so many begin as a chosen tree: one in 40 for each chosen tree beyond 8, at most half
CHOSEN_AGAIN, AGAIN_BEYOND = 40, 8
