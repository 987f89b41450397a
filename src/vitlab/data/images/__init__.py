"""One image, from its bytes to an upright RGB picture or the reason for its rejection."""
