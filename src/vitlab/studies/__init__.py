"""The paper's tables and figures as grids of runs, with the claims they support. Data only: nothing here is run."""
