"""Post-processing of released values: prediction, explanation, report, model files."""
