"""Files as such: system calls, directories, mutexes, logs, whole files. Knows nothing
of documents.
"""
