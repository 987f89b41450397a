"""Whole data sets: their index, its verification, and packing into shards."""
