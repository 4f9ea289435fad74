"""Files: system calls, kernel locks, whole files, and notices of what changed. It knows no
documents.
"""
