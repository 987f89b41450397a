"""Facts of the paper as data; every entry cites its table or section.

`models` table 1 and the names; `pretraining` table 3; `finetuning` table 4 and BiT-HyperRule; `selfsupervision`
section 4.6; `vtab` the 19 tasks; `results` tables 2 and 5 to 9; `imagenet` the thousand classes.
"""
