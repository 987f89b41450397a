"""From a decoded picture to the pixels a model sees, in training and in evaluation."""
