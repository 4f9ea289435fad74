"""`demo`, its acts, and the capsule that it begins with."""
