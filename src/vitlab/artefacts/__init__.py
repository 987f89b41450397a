"""Models as files that other programs run: from decoded pixels to logits, with the preprocessing inside."""
