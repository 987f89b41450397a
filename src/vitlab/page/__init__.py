"""What the page shows of a model: one picture traced through every layer, the model's card, the static export."""
