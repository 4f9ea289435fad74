"""Conversations of agent SDKs, kept as capsules: each module satisfies an interface of an SDK, and
imports none.
"""
