"""Measurements of a model or a data set: evaluation, features, few-shot, inspection, data checks."""
