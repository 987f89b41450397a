"""The process itself: signals, limits while it reads untrusted bytes, and a busy machine. Standard library only."""
