"""Words that users give, apart from what they mean: the command line's help names them, and imports little."""

POSITION = "position"  # as ``columns``: a matrix has the schema's features in its order
FEW_ROWS = ("stop", "continue")  # what a fit does where its number of rows cannot be told from none
WEIGHT = "sample_weight"  # column of a data set
ACCOUNT_UNITS = {"gdp": "μ²", "zcdp": "ρ", "pure": "ε"}  # by an account's analysis
ROLES = ("analyst", "auditor")  # of a ledger's server; an analyst may also do what an auditor may
RECIPES = (  # of `dpgb_dask.recipes`
    "additive",
    "auto",
    "dp-ebm",
    "dp-ebm-classic",
    "dp-ebm-newton",
    "dp-gbm",
    "dp-rf",
    "dp-xgboost",
    "dpboost",
    "fdp-hist-averaging",
    "fdp-hist-gradient",
    "fdp-hist-newton",
    "fdp-pr-averaging",
    "fdp-pr-gradient",
    "fdp-pr-newton",
    "fdp-tr-batch-100",
    "fdp-tr-batch-25",
    "fdp-tr-gradient",
    "fdp-tr-newton",
    "fdp-tr-newton-ih",
    "fdp-tr-newton-ih-ebm",
    "fdp-tr-newton-log",
    "fdp-tr-newton-quantile",
    "feverless",
    "ldp",
    "para",
    "seq",
)
