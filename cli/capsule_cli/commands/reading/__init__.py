"""The commands that only read, and `summarize`, which keeps what somebody made of it."""
