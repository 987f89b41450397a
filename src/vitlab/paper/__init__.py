"""Facts of the paper as data; every entry cites its table or section.

`names` and `models` table 1; `pretraining` table 3 and section 4.6; `finetuning` table 4 and BiT-HyperRule; `vtab` the
19 tasks; `results` tables 2 and 5 to 9; `imagenet` the thousand classes.
"""
