"""Inference behind one switch: what computes the features and logits of a model, and how it uses the cores."""
