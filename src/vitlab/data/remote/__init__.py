"""Data in object stores and on web servers: addresses, requests, retries, the cache of blocks."""
