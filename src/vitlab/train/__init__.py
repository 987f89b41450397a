"""Training: takes a module and an iterator of batches; knows neither models nor data."""
