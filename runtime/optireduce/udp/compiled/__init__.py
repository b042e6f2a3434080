"""UBT's work on bytes: by numpy, or compiled by numba (the extra ``fast``)."""
