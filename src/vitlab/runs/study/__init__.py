"""Run the studies of `vitlab.studies`: plan, train, measure, show, and decide their claims."""
