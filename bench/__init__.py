"""The project's one instrument for speed and memory: `python -m bench` from the root of the project.

`runner` measures, `results` keeps and compares, `machine` describes where, `limit` says what the machine could reach.
A module of `suites/` says what is measured; `experiments/` holds what is not a contest, such as learning.
"""
