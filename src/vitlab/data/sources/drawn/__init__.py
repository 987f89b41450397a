"""Data sets drawn by a program: fractals, shapes, letters."""
