"""Train any module on an iterator of batches; imports neither models nor data."""
