"""Kernels and sessions that outlive a host with a custodian, and how the next host takes them over.

A host has one `Keeper`. That of a host without a custodian keeps nothing; `keeping` is the other one. `tape` and `recording`
are about kernels, `state_log` and `states` about the states of sessions; `recovery` and `takeover` read these again.
"""
