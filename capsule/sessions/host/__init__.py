"""The host: it routes messages to sessions, wakes workers, delivers their answers, retries, schedules
and recovers.
"""
