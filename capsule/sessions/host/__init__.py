"""The host: it routes messages to sessions, wakes workers, delivers what they say, retries,
schedules and recovers.

What must stay true: every step may be done twice, and the process may be killed between any two;
what is to be done is read from the files, and decided by `capsule.sessions.rules`.
"""
