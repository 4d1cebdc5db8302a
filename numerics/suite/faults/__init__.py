"""Planted faults: the evidence that the suite sees what it claims to see."""


def nearest(check, found):
    return ""
