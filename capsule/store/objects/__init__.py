"""The objects that the Store offers beside its own methods: branches, edits, forks, merges,
summaries, the trash.
"""
